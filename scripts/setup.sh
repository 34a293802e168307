#!/usr/bin/env bash
# Creates the virtual environment for all scripts of this checkout. See --help.
set -euo pipefail

readonly OLDEST_MINOR=11     # Python 3.11: the oldest that fairseq-fixed supports
readonly NEWEST_WORKING=13   # hydra 1.3's command line does not start on Python 3.14
readonly BUILD_TOOLS=(torch numpy cython setuptools wheel ninja)  # fairseq's build imports them

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$(cd "$root" && realpath -m -- "${NORM_VENV:-.venv}")
stamp=$venv/setup.stamp
tests_stamp=$venv/setup-tests.stamp
tests=  # not empty: with what only the tests need
log=$venv/setup.log
fairseq_log=$venv/setup-fairseq.log

usage() {
  cat <<EOF
Usage: scripts/setup.sh [--tests]

Creates the virtual environment .venv in the root of the checkout. Installs there the versions in
requirements.lock and the project itself (editable); those at the end of the file, which only the
tests need, with --tests alone, and then those in requirements-cpu.lock too if torch is a CPU build.
If nothing has changed, prints nothing and returns at once. An interrupted setup is finished by the
next one. A second setup that starts meanwhile waits for the first.

Needs Python 3.$OLDEST_MINOR to 3.$NEWEST_WORKING with its venv module and headers, a C++ compiler, and
a package index for pip.

Environment variables:
  PYTHON     the Python for a new environment (default: python3, python3.11, ... on PATH)
  NORM_VENV  another folder for the environment, absolute or relative to the root of the checkout
  MAX_JOBS   number of compilers that run at once (default: limited by cores and memory)

To change the Python of an existing environment, remove its folder first.
EOF
}

die() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

say() {
  printf 'setup: %3d s  %s\n' "$SECONDS" "$1"
}

# --- is there anything to do? ---------------------------------------------------------------

python_version() {  # of the interpreter $1, as 3.11.7; fails when it does not run
  "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null </dev/null
}

digest() {  # of everything that decides what the environment holds; fails without a Python in it
  local version
  version=$(python_version "$venv/bin/python") || return 1
  { printf '%s\n' "$root" "$venv" "$version"
    cat "$root"/{requirements.lock,requirements-cpu.lock,setup.py,pyproject.toml} \
      "$root"/norm_plugin/kernels/cpu/csrc/*
  } | sha256sum
}

up_to_date() {
  local now
  [[ -r $stamp ]] && now=$(digest) && [[ $(<"$stamp") == "$now" ]] &&
    { [[ -z $tests ]] || [[ -r $tests_stamp && $(<"$tests_stamp") == "$now" ]]; }
}

# --- what the machine must have -------------------------------------------------------------

minor_version() {  # 3.11.7 -> 11; 0 for any other major version
  local major minor _
  IFS=. read -r major minor _ <<<"$1"
  if [[ $major == 3 ]]; then echo "$minor"; else echo 0; fi
}

choose_python() {  # prints the interpreter to use
  local name version minor newer='' seen='none at all'
  if [[ -n ${PYTHON:-} ]]; then
    version=$(python_version "$PYTHON") || die "PYTHON=$PYTHON does not run; set it to a Python >= 3.$OLDEST_MINOR or unset it"
    (($(minor_version "$version") >= OLDEST_MINOR)) ||
      die "PYTHON=$PYTHON is Python $version; set it to a Python >= 3.$OLDEST_MINOR or unset it"
    echo "$PYTHON"
    return
  fi
  for name in python3 python3.{11..14}; do
    version=$(python_version "$name") || continue  # absent, or a shim with nothing behind it
    minor=$(minor_version "$version")
    if ((minor >= OLDEST_MINOR && minor <= NEWEST_WORKING)); then
      echo "$name"
      return
    fi
    if ((minor >= OLDEST_MINOR)); then newer=${newer:-$name}; else seen="$name is $version"; fi
  done
  [[ -n $newer ]] ||
    die "no Python >= 3.$OLDEST_MINOR on PATH ($seen); install one (Debian, Ubuntu: apt install python3 python3-venv python3-dev) or set PYTHON to it"
  echo "setup: $newer is newer than 3.$NEWEST_WORKING: fairseq-hydra-train may not start there" >&2
  echo "$newer"
}

require_venv_module() {
  "$1" -c 'import ensurepip, venv' &>/dev/null </dev/null ||
    die "$1 has no venv module; install it (Debian, Ubuntu: apt install python3-venv) or set PYTHON to another Python"
}

require_headers() {
  "$1" -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_paths()["include"], "Python.h").is_file())' </dev/null ||
    die "$1 has no header files (Python.h); install them (Debian, Ubuntu: apt install python3-dev) or set PYTHON to another Python"
}

require_compiler() {
  local -a compiler
  read -ra compiler <<<"${CXX:-g++}"
  "${compiler[@]}" -x c++ -fsyntax-only - <<<'#include <vector>' &>/dev/null ||
    die "no working C++ compiler (${compiler[*]}); install one (Debian, Ubuntu: apt install build-essential) or set CXX to it"
}

# --- the environment ------------------------------------------------------------------------

usable_venv() {  # the Python runs, pip is complete, and the folder was made for this very place
  local version
  version=$(python_version "$venv/bin/python") &&
    (($(minor_version "$version") >= OLDEST_MINOR)) &&
    "$venv/bin/python" -c 'import pip' &>/dev/null </dev/null &&
    grep -qsF -- "$venv" "$venv/bin/activate"
}

make_venv() {  # with the interpreter $1
  local output
  if [[ -n $(ls -A "$venv" 2>/dev/null) && ! -e $log ]]; then
    die "$venv was not made by this script and cannot be used; remove it or set NORM_VENV to another folder"
  fi
  rm -rf -- "$venv"
  mkdir -p "$venv"
  : >"$log"  # first of all: it marks the folder as ours if we are interrupted from here on
  output=$("$1" -m venv "$venv" 2>&1 </dev/null) ||
    die "$1 -m venv failed (${output##*$'\n'}); fix this or set PYTHON to another Python"
}

# pip killed half-way leaves packages that it takes for complete: INSTALLER is among the last files
# that it writes, and a folder ~name is the old version that it was replacing.
forget_half_installed() {
  local site info
  for site in "$venv"/lib/python3.*/site-packages; do
    for info in "$site"/*.dist-info; do
      [[ ! -d $info || -e $info/INSTALLER ]] || rm -rf -- "$info"
    done
    rm -rf -- "$site"/~*
  done
}

# --- installing -----------------------------------------------------------------------------

jobs_allowed() {  # a compiler over torch's headers takes up to 2 GiB
  local free_kib cores
  cores=$(env -u OMP_NUM_THREADS nproc)  # nproc takes that variable for its answer
  free_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  local jobs=$((free_kib / 2097152))
  ((jobs <= cores)) || jobs=$cores
  ((jobs >= 1)) || jobs=1
  echo "$jobs"
}

explain_failure() {  # of the step $1; the log holds what pip said
  local hint="see the end of the log"
  if grep -q 'No space left on device' "$log"; then
    hint="the disk is full; make room and run this again"
  elif grep -qE 'Failed (building|to build)|error: command .* failed' "$log"; then
    hint="the build failed; see the log"
  elif grep -qE 'after connection broken|ConnectionPool|ConnectionError|name resolution' "$log"; then
    hint="pip cannot reach its package index; check the network, the proxy and pip's configuration, then run this again"
  elif grep -qE 'ImportError|undefined symbol' "$log"; then
    hint="pip kept a fairseq that was built with other libraries; run 'pip cache remove fairseq_fixed', remove $venv and run this again"
  elif grep -q 'No matching distribution' "$log"; then
    hint="the package index has no fitting file of a version in requirements.lock; set PYTHON to Python 3.$OLDEST_MINOR to 3.$NEWEST_WORKING and remove $venv"
  fi
  die "$1: $hint (log: $log)"
}

step() {  # step TITLE COMMAND...: one line on screen, all output in the log
  local title=$1
  shift
  say "$title"
  printf '== %s\n' "$title" >"$log"
  "$@" >>"$log" 2>&1 </dev/null || explain_failure "$title"
}

readonly PIP=(-m pip install --disable-pip-version-check --no-input --progress-bar off --retries 2)

pip_install() {
  "$venv/bin/python" "${PIP[@]}" "$@"
}

torch_brings_triton() {  # as its builds for a GPU do, in the version that they work with
  "$venv/bin/python" -c 'import sys, torch
sys.exit(not (torch.version.cuda or torch.version.hip))' &>/dev/null </dev/null
}

install_all() {
  local lock=$root/requirements.lock
  export MAX_JOBS=${MAX_JOBS:-$(jobs_allowed)}
  # fairseq builds CUDA code as soon as this is set, which needs an nvcc of torch's own version.
  unset CUDA_HOME
  step "installing torch and the build tools" pip_install -c "$lock" "${BUILD_TOOLS[@]}"
  # fairseq compiles on one core for minutes. Meanwhile the others do all that does not need it.
  say "installing fairseq (compiles for two to four minutes the first time)"
  "$venv/bin/python" "${PIP[@]}" --no-build-isolation --no-deps -c "$lock" fairseq-fixed \
    &>"$fairseq_log" </dev/null &
  local fairseq=$!
  trap 'kill "$fairseq" 2>/dev/null' EXIT
  local end=${tests:+nothing}
  sed "/^# ${end:-For tests only}/,\$d; /^fairseq-fixed==/d" "$lock" >"$venv/libraries.txt"
  step "installing the other libraries" \
    pip_install --no-build-isolation --no-deps -r "$venv/libraries.txt"
  [[ -z $tests ]] || torch_brings_triton ||
    step "installing triton" pip_install --no-deps -r "$root/requirements-cpu.lock"
  step "installing the project" pip_install --no-build-isolation --no-deps -e "$root"
  say "waiting for fairseq"
  wait "$fairseq" || { log=$fairseq_log; explain_failure "installing fairseq"; }
  trap - EXIT
  # A wheel that pip kept from a build with another torch installs well and does not load.
  step "checking that fairseq loads" "$venv/bin/python" -c \
    'import torch, fairseq.libnat, fairseq.libbleu, fairseq.data.token_block_utils_fast'
}

main() {
  case ${1:-} in
    '') ;;
    -h | --help) usage; return ;;
    --tests) tests=1 ;;
    *) die "unknown argument $1; see scripts/setup.sh --help" ;;
  esac
  if up_to_date; then return; fi

  command -v flock >/dev/null || die "no flock command; install util-linux"
  # Beside the environment, which may be removed. What we start inherits it: an orphaned pip of a
  # killed run still holds the next one back.
  mkdir -p "$(dirname "$venv")"
  exec 9>"$venv.lock"
  if ! flock --nonblock 9; then
    say "another setup of this folder is running; waiting for it"
    flock 9
    if up_to_date; then return; fi
  fi

  require_compiler
  rm -f "$stamp"
  if usable_venv; then
    require_headers "$venv/bin/python"
    forget_half_installed
  else
    local python
    python=$(choose_python)
    require_venv_module "$python"
    require_headers "$python"
    say "creating $venv with Python $(python_version "$python")"
    make_venv "$python"
  fi
  digest >"$stamp.new"  # before installing, so that a file changed meanwhile is seen next time
  install_all
  if [[ $tests ]]; then cp "$stamp.new" "$tests_stamp"; fi
  mv "$stamp.new" "$stamp"
  say "ready"
}

main "$@"
