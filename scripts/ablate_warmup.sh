#!/usr/bin/env bash
# Placement, warm-up and learning rate on Multi30k, as studies/warmup/study.yaml lists them. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

norm_plugin study warmup "$@"
