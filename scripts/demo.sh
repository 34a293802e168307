#!/usr/bin/env bash
# The whole path on the embedded toy corpus, for four norms, to a table. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin demo "$@"
