#!/usr/bin/env bash
# An experiment from raw text to its score: run_NAME.sh, a link to this, runs the experiment NAME. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=$(basename "$0" .sh)
norm_plugin run "${name#run_}" "$@"
