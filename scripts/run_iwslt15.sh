#!/usr/bin/env bash
# IWSLT15 English-Vietnamese, from Stanford's files to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/run_iwslt15.sh [OPTIONS] [-- FLAGS]

Prepares IWSLT15 En-Vi, trains transformer_wmt_en_de, averages the last 10 checkpoints, translates
tst2013 with beam 5 and writes iwslt15_en_vi_<recipe>/<norm>-seed<N>.json to --results. For a GPU.

TEXT
  recipe_help
  options_help
}

recipe=adanorm
script_option() { recipe_option "$@"; }

parse_options "$@"
begin iwslt15_en_vi iwslt15
prepare
train_to_score
