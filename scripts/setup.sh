#!/usr/bin/env bash
# Creates the virtual environment for all scripts of this checkout. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$(cd "$root" && realpath -m -- "${NORM_VENV:-.venv}")
lock=$root/requirements.lock
log=$venv/setup.log
stamp=$venv/setup.stamp
mark=$venv/.made-by-norm-plugin
tests=  # not empty: with what only the tests need

usage() {
  cat <<EOT
Usage: scripts/setup.sh [--tests]

Creates the virtual environment .venv in the root of the checkout, with the versions in
requirements.lock and the project itself (editable); --tests adds what only the tests need. If
nothing has changed, prints nothing and returns at once. An interrupted setup is finished by the
next one; a second one waits for the first.

Needs Python 3.11 to 3.13 with its venv module and headers, a C++ compiler, and a package index.

Environment variables:
  PYTHON     the Python for a new environment (default: the first that fits of python3,
             python3.13, python3.12 and python3.11); to change it later, remove the folder first
  NORM_VENV  another folder for the environment, absolute or relative to the root of the checkout
EOT
}

say() { printf 'setup: %3d s  %s\n' "$SECONDS" "$1"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

step() {  # step TITLE COMMAND...: one line on screen, all output in the log
  say "$1"
  "${@:2}" >>"$log" 2>&1 </dev/null && return
  tail -n 5 "$log" >&2
  die "$1 failed (above: the end of $log); mend the cause and run this again"
}

digest() {  # of everything that decides what the environment holds; fails without a Python in it
  { "$venv/bin/python" -V && cd "$root" && printf '%s\n' "$root" "$venv" &&
      cat requirements{,-cpu}.lock setup.py pyproject.toml norm_plugin/kernels/cpu/csrc/*
  } 2>/dev/null | sha256sum
}

up_to_date() {
  local now
  [[ -r $stamp ]] && now=$(digest) && [[ "$(<"$stamp") " == "$now ${tests:+tests }"* ]]
}

choose_python() {  # choose_python CANDIDATE...: leaves the first that lacks nothing in $python
  local lacks seen=
  for python in "$@"; do
    lacks=$("$python" "$root/scripts/check_python.py" 2>/dev/null </dev/null) || lacks="does not run"
    [[ -n $lacks ]] || return 0
    seen+="${seen:+; }$python ${lacks//$'\n'/, and it }"
  done
  die "no usable Python ($seen); install what is missing, or set PYTHON to another one"
}

ours() {  # environments made before there was a mark have a stamp with a digest
  [[ -e $mark ]] || grep -qsE '^[0-9a-f]{64}  -( tests)?$' "$stamp"
}

make_venv() {  # unless there is a complete one, made for this very place
  local info
  [[ -z $(ls -A "$venv" 2>/dev/null) ]] || ours ||
    die "$venv was not made by this script; remove it or set NORM_VENV to another folder"
  if "$venv/bin/python" -c 'import pip' &>/dev/null &&
    grep -qsF -- "$venv" "$venv/bin/activate"; then
    choose_python "$venv/bin/python"
    # pip killed half-way leaves packages that it takes for complete: INSTALLER is among the last
    # files that it writes, and a folder ~name is the old version that it was replacing.
    for info in "$venv"/lib/python3.*/site-packages/*.dist-info; do
      [[ -e $info/INSTALLER ]] || rm -rf -- "$info"
    done
    rm -rf -- "$venv"/lib/python3.*/site-packages/~*
    return
  fi
  if [[ ${PYTHON:-} ]]; then choose_python "$PYTHON"; else choose_python python3{,.13,.12,.11}; fi
  rm -rf -- "$venv"
  mkdir -p "$venv"
  : >"$mark"
  step "creating $venv with $("$python" -V)" "$python" -m venv "$venv"
}

install_all() {
  local -a pip=("$venv/bin/python" -m pip install --disable-pip-version-check --no-input
    --progress-bar off --no-build-isolation)
  local -a fairseq rest=(-e "$root")
  local build loads='import torch, fairseq.libnat, fairseq.libbleu, fairseq.data.data_utils_fast'
  local end='/^# For tests only/'
  # Python compiles what it imports, where it may store it
  [[ ${PYTHONDONTWRITEBYTECODE:-} ]] || pip+=(--no-compile)
  export MAX_JOBS=${MAX_JOBS:-2}  # a compiler over torch's headers takes up to 2 GiB
  export CPPFLAGS="${CPPFLAGS:-} -g0"  # Python's own -g doubles the time of fairseq's build
  unset CUDA_HOME  # with it, fairseq builds CUDA code, which needs an nvcc of torch's own version
  step "installing torch and the build tools" \
    "${pip[@]}" -c "$lock" torch numpy cython setuptools wheel ninja

  say "building fairseq (one to three minutes the first time)"
  fairseq=("${pip[@]}" --no-deps -c "$lock" fairseq-fixed)
  "${fairseq[@]}" &>"$venv/setup-fairseq.log" </dev/null &
  build=$!
  trap 'kill "$build" 2>/dev/null' EXIT
  if [[ $tests ]]; then
    end='/^no such line/'
    # torch's builds for a GPU bring the triton along that they work with
    "$venv/bin/python" -c \
      'from importlib.metadata import requires; exit("triton" in str(requires("torch")))' &&
      rest+=(-r "$root/requirements-cpu.lock")
  fi
  sed "$end,\$d; /^fairseq-fixed==/d" "$lock" >"$venv/libraries.txt"
  step "installing the other libraries and the project" \
    "${pip[@]}" --no-deps -r "$venv/libraries.txt" "${rest[@]}"
  log=$venv/setup-fairseq.log step "waiting for fairseq" wait "$build"
  trap - EXIT
  if ! "$venv/bin/python" -c "$loads" &>>"$log"; then  # pip kept it from a build with another torch
    step "building fairseq again" "${fairseq[@]}" --force-reinstall --no-cache-dir
    step "checking that fairseq loads" "$venv/bin/python" -c "$loads"
  fi
}

main() {
  local now
  case ${1:-} in
    '') ;;
    -h | --help) usage; return ;;
    --tests) tests=1 ;;
    *) die "unknown argument $1; see scripts/setup.sh --help" ;;
  esac
  if up_to_date; then return; fi
  # The lock is beside the environment, which may be removed. What we start inherits it: an orphaned
  # pip of a killed run still holds the next one back.
  mkdir -p "$(dirname "$venv")"
  exec 9>>"$venv.lock"  # appends nothing: a file of this name may be the user's
  flock --nonblock 9 || { say "another setup of this folder is running; waiting for it"; flock 9; }
  if up_to_date; then return; fi

  bash -c "${CXX:-g++} -x c++ -fsyntax-only -" <<<'#include <vector>' &>/dev/null ||
    die "no working C++ compiler (${CXX:-g++}): install one (on Debian and Ubuntu, apt install" \
      "build-essential) or set CXX to it"
  make_venv
  rm -f "$stamp"
  now=$(digest)  # before installing, so that a file changed meanwhile is seen next time
  install_all
  echo "$now${tests:+ tests}" >"$stamp.new"
  mv "$stamp.new" "$stamp"
  say "ready"
}

main "$@"
