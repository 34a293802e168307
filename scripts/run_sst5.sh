#!/usr/bin/env bash
# SST5, from the raw sentences to accuracy. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin run sst5 "$@"
