#!/usr/bin/env bash
# All stages on the toy corpus, for four norms. See --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/demo.sh [OPTIONS] [-- FLAGS]

Trains a small Transformer on a generated toy corpus, averages its checkpoints, translates the test
set and computes BLEU. Does this for layernorm, adanorm, powernorm and none, or for the norm of
--norm-type, and prints a table. Takes at most 8 minutes on two cores.

TEXT
  options_help
}

norm=''
parse_options "$@"
norms=("$norm")
[[ -n $norm ]] || norms=(layernorm adanorm powernorm none)

if ((${#further[@]} && ${#norms[@]} > 1)); then
  scripts/setup.sh >&2
  # They may suit one norm and not the next, which is better known before the first is trained.
  for norm in "${norms[@]}"; do recipe_arrays toy >/dev/null; done
fi
for norm in "${norms[@]}"; do
  begin toy toy
  prepare
  train_to_score
done
[[ -z $dry ]] || exit 0
printf '\n'
"$python" -m norm_plugin.experiments.tables "$results/$experiment"
printf '\nOne seed on a toy corpus shows that everything works, not which norm is better.\n'
printf 'Checkpoints and translations: %s\nResults: %s\n' \
  "$work/runs/$experiment" "$results/$experiment"
