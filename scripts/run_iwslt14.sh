#!/usr/bin/env bash
# IWSLT14 German-English, from the archive to BLEU. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/run_iwslt14.sh [OPTIONS] [-- FLAGS]

Prepares IWSLT14 De-En, trains transformer_iwslt_de_en, averages the last 10 checkpoints,
translates the test set with beam 5 and writes iwslt14_de_en_<recipe>/<norm>-seed<N>.json to --results.
For a GPU.

TEXT
  recipe_help
  options_help
}

recipe=adanorm
script_option() { recipe_option "$@"; }

parse_options "$@"
begin iwslt14_de_en iwslt14
prepare
train_to_score
