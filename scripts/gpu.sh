#!/usr/bin/env bash
# Checks, measures and trains on a GPU. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=${NORM_VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
python=${PYTHON:-python3}
cd "$root"
if [[ -x $venv/bin/python ]]; then
  python=$venv/bin/python
elif [[ " $* " != *" -h "* && " $* " != *" --help "* && " $* " != *" --wheels "* ]] &&
  ! "$python" -c 'import torch' 2>/dev/null; then
  scripts/setup.sh
  python=$venv/bin/python
fi
exec "$python" tools/on_gpu/__main__.py "$@"
