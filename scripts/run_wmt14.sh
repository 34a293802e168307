#!/usr/bin/env bash
# WMT14 English-German, from the archives to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/run_wmt14.sh [OPTIONS] [-- FLAGS]

Prepares WMT14 En-De, trains transformer_wmt_en_de_big_t2t, averages the last 10 checkpoints,
translates newstest2014 with beam 4 and writes wmt14_en_de_<recipe>/<norm>-seed<N>.json to --results.
For several GPUs.

TEXT
  recipe_help
  options_help
}

recipe=adanorm
script_option() { recipe_option "$@"; }

parse_options "$@"
begin wmt14_en_de wmt14
prepare
train_to_score
