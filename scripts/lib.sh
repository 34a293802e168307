#!/usr/bin/env bash
# Starts commands of norm_plugin in the environment of this checkout. Sourced.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# experiments COMMAND [NAME] ARGUMENTS...: the help is there before the environment is.
experiments() {
  if [[ ${*: -1} == @(-h|--help) ]]; then
    exec python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import options
options.show_help(*sys.argv[2:4])' "$root/norm_plugin/experiments" "$1" "${2:-}"
  fi
  module norm_plugin.experiments "$@"
}

# module NAME ARGUMENTS...: python -m NAME, in the place of this shell.
module() {
  local python=${NORM_VENV:-.venv}/bin/python
  "$root/scripts/setup.sh" >&2
  [[ $python == /* ]] || python=$root/$python
  # -P: a folder norm_plugin where the user stands is not meant
  PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -P -m "$@"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  printf 'usage: sourced by the scripts of the experiments; see scripts/run_multi30k.sh --help\n'
fi
