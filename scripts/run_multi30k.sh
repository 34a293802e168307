#!/usr/bin/env bash
# Multi30k En-De with Transformer-Tiny, from raw text to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin run multi30k "$@"
