#!/usr/bin/env bash
# Starts commands of norm_plugin in the environment of this checkout. Sourced.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# norm_plugin VERB ARGUMENTS...: replaces this shell. --help works before the environment exists.
norm_plugin() {
  local python=${NORM_VENV:-.venv}/bin/python
  if [[ ${*: -1} == @(-h|--help) ]]; then
    exec python3 -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); import norm_plugin.cli
norm_plugin.cli.run()' "$root" "$@"
  fi
  "$root/scripts/setup.sh" >&2
  [[ $python == /* ]] || python=$root/$python
  # -P: a folder norm_plugin in the working directory must not be imported
  PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -P -m norm_plugin "$@"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  printf 'usage: sourced by the scripts of the experiments; see scripts/run_multi30k.sh --help\n'
fi
