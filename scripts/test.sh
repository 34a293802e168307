#!/usr/bin/env bash
# Lints, type-checks and tests the checkout. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
bin=${NORM_VENV:-.venv}/bin  # used from the root only

usage() {
  cat <<EOF
Usage: scripts/test.sh [PYTEST ARGUMENT...]

Runs scripts/setup.sh --tests, ruff (lint and format), shellcheck, mypy and pytest. Stops at the first that
fails. Arguments go to pytest: scripts/test.sh tests/norms -k powernorm

Environment variables:
  NORM_DATA_DIR    folder with the real corpora; without it, the tests on them are skipped
  OMP_NUM_THREADS  threads of each torch process (default: 1, because several processes run)
  NORM_VENV        folder of the virtual environment, as for scripts/setup.sh
EOF
}

section() {  # section TITLE COMMAND...
  local title=$1 start=$SECONDS status=0
  shift
  printf '== %s\n' "$title"
  "$@" || status=$?
  if ((status)); then
    printf 'error: %s failed (see above)\n' "$title" >&2
    exit "$status"
  fi
  printf '   passed in %d s\n' "$((SECONDS - start))"
}

shell_scripts() {  # every one that git tracks or would track
  git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run
}

main() {
  case ${1:-} in
    -h | --help) usage; return ;;
  esac
  local -a scripts
  cd "$root"
  scripts/setup.sh --tests
  mapfile -t scripts < <(shell_scripts)

  section "ruff check" "$bin/ruff" check
  section "ruff format" "$bin/ruff" format --check
  section "shellcheck" "$bin/shellcheck" "${scripts[@]}"
  section "mypy" "$bin/mypy"

  # The models of the tests are small: two threads of one would only wait for each other, and a
  # worker a core does better. Each begins with its half of the tests, in order, so that most
  # fixtures are made once; one that is done takes over the last tests of the other.
  local workers
  workers=$(env -u OMP_NUM_THREADS nproc)  # nproc takes that variable for its answer
  if ((workers > 4)); then workers=4; fi
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  # Fresh processes import fairseq in 4 s instead of 10 with the bytecode that others have stored.
  unset PYTHONDONTWRITEBYTECODE
  echo "== pytest"
  if (($# == 0)); then  # of all tests, not of a choice: they cover the norms and the averaging
    set -- --cov --cov-fail-under=95 --cov-report=term-missing
  fi
  exec "$bin/python" -m pytest -n "$workers" --dist worksteal "$@"
}

main "$@"
