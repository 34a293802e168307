#!/usr/bin/env bash
# IWSLT14 German-English, from the archive to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin run iwslt14 "$@"
