#!/usr/bin/env bash
# Test, measure and train on a GPU. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly MINUTE=60

usage() {
  cat <<EOF
Usage: scripts/gpu.sh [options]

Test, measure and train on a GPU, in one command:

  bash scripts/gpu.sh --minutes 60                 # an NVIDIA GPU
  bash scripts/gpu.sh --wheels DIR --raw DIR       # no network
  bash scripts/gpu.sh --device cpu --quick         # try the command without a GPU

Parts: install missing packages; kernels, in C++; tests that use a device, in three precisions, with
trainings by --fp16, --bf16, --amp and --memory-efficient-fp16; sanitizer, the kernels under NVIDIA's
compute-sanitizer; two-gpus; speed, of layers and updates; multi30k with preset=paper, for which
41.02 BLEU is published, with more norms and seeds while there is time.

If a part fails or takes too long, the other parts still run. After an interruption, the same command
resumes: parts that have passed with the same code and options are not repeated. Rows of the
benchmarks go to benchmarks/results/, with --quick or on a CPU to --out; results to --out.

The Python is that of .venv. Without .venv, it is \$PYTHON or python3 with its own torch, in an
environment of its own in --out; if it has no torch, scripts/setup.sh creates .venv first.

Options:
  --device DEVICE   cuda (default) or cpu
  --quick           run as little as shows that everything works
  --minutes N       time for all parts together, in minutes (default: 120)
  --wheels DIR      install only from this folder
  --raw DIR         folder with multi30k/ (default: download it)
  --out DIR         folder for logs and temporary files (default: work/gpu)
  --parts PART...   run only the parts whose names begin like this
  --help            print this text
EOF
}

die() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

device=cuda quick='' minutes=120 wheels='' raw='' out=$root/work/gpu parts=('')
while (($#)); do
  case $1 in
    -h | --help) usage; exit ;;
    --quick) quick=quick ;;
    --parts)
      parts=()
      while [[ ${2:-} && $2 != -* ]]; do parts+=("$2"); shift; done
      ;;
    --device | --minutes | --wheels | --raw | --out)
      [[ ${2:-} ]] || die "$1 needs a value; see --help"
      case $1 in
        --device) device=$2 ;;
        --minutes) minutes=$2 ;;
        --out) out=$(realpath -m -- "$2") ;;
        --wheels) wheels=$(realpath -e -- "$2") ;;
        --raw) raw=$(realpath -e -- "$2") ;;
      esac
      shift
      ;;
    *) die "unknown option $1; see --help" ;;
  esac
  shift
done
[[ $device == cuda || $device == cpu ]] || die "--device is $device; it must be cuda or cpu"
[[ $minutes =~ ^[0-9]+$ ]] || die "--minutes is $minutes; it must be an integer"
cd "$root"
mkdir -p "$out/logs" "$out/passed"
code=$(find norm_plugin configs data-prep benchmarks tests scripts setup.py requirements.lock \
  -type f ! -name '*.pyc' ! -name '*.so' -print0 | sort -z | xargs -0 cat | sha256sum | cut -c1-12)
rows=$out
if [[ $device == cuda && ! $quick ]]; then rows=$root/benchmarks/results; fi

# --- parts ----------------------------------------------------------------------------------

summary=() failed=0

note() {  # NAME TEXT: what became of a part
  summary+=("$(printf '%-26s %s' "$1" "$2")")
  printf '%s: %s\n' "$1" "$2"
}

wanted() {
  local prefix
  for prefix in "${parts[@]}"; do [[ $1 != "$prefix"* ]] || return 0; done
  return 1
}

part() {  # NAME SECONDS COMMAND...
  local name=$1 seconds=$2 left=$((minutes * MINUTE - SECONDS)) begin=$SECONDS status=0
  local log=$out/logs/$1.log passed=$out/passed/$1-$device-$quick-$code
  shift 2
  wanted "$name" || return 0
  if [[ -e $passed ]]; then note "$name" 'passed before'; return; fi
  if ((left <= 0)); then note "$name" 'no time was left'; return; fi
  printf '%s: running\n' "$name"
  # setpriv: ends the command when this script is killed
  setpriv --pdeathsig TERM timeout --foreground --kill-after 10 "$((seconds < left ? seconds : left))" \
    "$@" >"$log" 2>&1 </dev/null || status=$?
  case $status in
    0)
      : >"$passed"
      note "$name" "passed in $((SECONDS - begin)) s: $(tail -n 1 "$log" | cut -c1-90)"
      ;;
    124 | 137) note "$name" "out of time after $((SECONDS - begin)) s; what it has measured is kept" ;;
    130 | 143) exit "$status" ;;  # interrupted
    *)
      failed=1
      tail -n 15 "$log" | sed 's/^/    /'
      note "$name" "failed with status $status, see $log"
      ;;
  esac
}

install() {  # install what the Python $1 lacks, except its torch, in an environment that sees it
  local source=() pins tools name files
  pins=$(grep -E '^[a-zA-Z].*==' requirements.lock | grep -vE '^(torch|triton)==')
  if [[ $wheels ]]; then
    source=(--no-index --find-links "$wheels")
    # a folder made for another Python may have other versions than the lock, and lack some
    files=$(find "$wheels" -maxdepth 1 -printf '%f\n' | tr 'A-Z.-' 'a-z__')
    pins=$(while IFS='=' read -r name _; do
      if grep -q "^$(tr 'A-Z.-' 'a-z__' <<<"$name")_[0-9]" <<<"$files"; then
        echo "$name"
      else
        echo "not in $wheels: $name" >&2
      fi
    done <<<"$pins")
  fi
  "$1" -m venv --system-site-packages "$out/venv" || return
  # if $1 is itself of an environment, that option shows the packages of the system instead of its own
  local site='import sysconfig; print(sysconfig.get_path("purelib"))'
  printf 'import site; site.addsitedir("%s")\n' "$("$1" -c "$site")" \
    >"$("$out/venv/bin/python" -c "$site")/of_torch.pth" || return
  # fairseq's build imports torch and numpy, so it is not isolated
  local pip=("$out/venv/bin/python" -m pip install --no-input --no-deps --no-build-isolation "${source[@]}")
  tools=$(grep -E '^(numpy|cython|setuptools|wheel|ninja)(=|$)' <<<"$pins") || true
  # shellcheck disable=SC2086  # one word each
  if [[ $tools ]]; then "${pip[@]}" $tools || return; fi
  "${pip[@]}" -r <(echo "$pins")
}

venv=${NORM_VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
python=$venv/bin/python
if [[ ! -x $python ]]; then
  python=${PYTHON:-python3}
  if "$python" -c 'import torch' 2>/dev/null; then
    printf 'install: running\n'
    install "$python" >"$out/logs/install.log" 2>&1 || die "cannot install, see $out/logs/install.log"
    python=$out/venv/bin/python
  else
    scripts/setup.sh --tests
    python=$venv/bin/python
  fi
fi
gpus=0
if [[ $device == cuda ]]; then
  gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
  ((gpus)) || die 'torch finds no CUDA device; give --device cpu --quick'
else
  export CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
fi
export NORM_TEST_DEVICE=$device PYTHONUNBUFFERED=1 PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if [[ $raw ]]; then export NORM_DATA_DIR=$raw; fi

kernels=norm_plugin/kernels/cpu
built=$(compgen -G "$kernels/_native*.so" | head -n 1) || true
if [[ ! $built || $(find "$kernels/csrc" -newer "$built") ]]; then
  part kernels $((10 * MINUTE)) "$python" setup.py build_ext --inplace
fi

tests=("$python" -m pytest -q -p no:cacheprovider)
some=(-n auto --maxprocesses 8)
if [[ $quick ]]; then some=(-k 'powernorm and not triton'); fi
part tests $((30 * MINUTE)) "${tests[@]}" -m 'device and not two_gpus' "${some[@]}" tests/kernels tests/models
if [[ $device == cpu ]]; then
  note sanitizer 'skipped: it checks GPUs only'
elif ! command -v compute-sanitizer >/dev/null; then
  note sanitizer 'skipped: there is no compute-sanitizer'
else
  part sanitizer $((10 * MINUTE)) compute-sanitizer --error-exitcode 9 \
    "${tests[@]}" -x tests/kernels/test_triton_passes.py
fi
if ((gpus < 2)); then
  note two-gpus "skipped: torch sees $gpus GPUs"
else
  part two-gpus $((5 * MINUTE)) "${tests[@]}" -m two_gpus tests/kernels
fi

speed=()
if [[ $quick ]]; then
  part toy $((5 * MINUTE)) "$python" data-prep/toy.py --out "$out/toy" --workers 1 \
    --train 400 --valid 40 --test 40
  speed=(--quick --data "$out/toy/bin")
fi
part speed $((10 * MINUTE)) "$python" benchmarks/gpu.py --device "$device" "${speed[@]}" --output "$rows"

where=(--work "$out/work" --results "$out/results")
if [[ $quick ]]; then
  part toy-run $((10 * MINUTE)) "$python" -m norm_plugin run toy --smoke "${where[@]}"
else
  if [[ $raw ]]; then where+=(--raw "$raw/multi30k"); fi
  part multi30k $((360 * MINUTE)) "$python" -m norm_plugin sweep multi30k preset=paper \
    seed=1,2,3,4,5,6,7,8,9,10 placement=post,pre norm=layernorm,powernorm "${where[@]}"
fi

printf '\n'
printf '%s\n' "${summary[@]}" "logs: $out/logs"
exit "$failed"
