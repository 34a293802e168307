#!/usr/bin/env bash
# A language model, from raw text to the loss on the test text: run_lm.sh CORPUS, as ptb. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin run "$@"
