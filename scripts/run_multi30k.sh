#!/usr/bin/env bash
# Multi30k En-De with Transformer-Tiny, from raw text to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/run_multi30k.sh [OPTIONS] [-- FLAGS]

Prepares Multi30k, trains Transformer-Tiny, averages the last checkpoints, translates test2016
with beam 5 and writes multi30k_<preset>/<norm>-seed<N>.json to --results.

  --preset P      paper: as in Wu et al. 2021, for a GPU (default); cpu: 2,000 BPE merges,
                  pre-norm and 12 epochs, under 20 minutes on two cores
TEXT
  options_help
}

preset=paper
script_option() {
  [[ $1 == --preset ]] || unknown_option "$1"
  preset=$2
}

parse_options "$@"
case $preset in
  paper) merges=10000 ;;
  cpu) merges=2000 ;;
  *) die "--preset is $preset; choose paper or cpu" ;;
esac

data_flags=(--merges "$merges")
begin "multi30k_$preset" multi30k "$merges"
prepare
train_to_score
