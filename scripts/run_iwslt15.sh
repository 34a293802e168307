#!/usr/bin/env bash
# IWSLT15 English-Vietnamese, from Stanford's files to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin run iwslt15 "$@"
