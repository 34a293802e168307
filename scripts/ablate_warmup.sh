#!/usr/bin/env bash
# Placement x warm-up x learning rate on Multi30k, as configs/study/warmup.yaml lists it, and a table
# and a figure of it. Stopped, it continues with the same command. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

status=0
(norm_plugin sweep warmup "$@") || status=$?
if [[ ${*: -1} != @(-h|--help) ]]; then
  (norm_plugin warmup "$@")
fi
exit "$status"
