#!/usr/bin/env bash
# What the scripts of the experiments share: options, stages, and the steps of a run. Sourced.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${NORM_VENV:-.venv}/bin/python  # used from the root only
# fairseq calls torch by names that torch warns about, a screen of it at each start
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}

# Set by the options below; a script may set other defaults after sourcing this.
norm=layernorm seed=1 work=$root/work raw='' further=()

options_help() {
  cat <<'TEXT'
  --norm-type X   the norm of every site (default layernorm); `python -m norm_plugin --list`
  --seed N        seed of weights, dropout and order of batches (default 1)
  --raw DIR       folder with the raw corpus (default: NORM_DATA_DIR/<corpus>, else downloaded)
  --work DIR      where data, checkpoints and translations go (default: work)
  -- FLAGS        further flags of fairseq-train, the norm's own options among them

Stopped at any point, the same command goes on where it was. One that has finished does nothing.
TEXT
}

die() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

say() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$1"; }

# parse_options "$@": the shared options; script_option, where defined, takes any other.
parse_options() {
  while (($#)); do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --) further=("${@:2}"); return ;;
      --*) [[ $# -ge 2 ]] || die "$1 needs a value; see --help" ;;
    esac
    case $1 in
      --norm-type) norm=$2 ;;
      --seed) seed=$2 ;;
      --raw) raw=$2 ;;
      --work) work=$2 ;;
      *) script_option "$1" "$2" ;;
    esac
    shift 2
  done
}

# script_option NAME VALUE: an option of one script alone; scripts redefine it.
script_option() { die "unknown option $1; see --help (flags of fairseq-train come after --)"; }

# begin EXPERIMENT RECIPE DATA: name the run and keep a second one out of its folder.
begin() {
  experiment=$1 recipe=$2 data=$3 label=$norm key=''
  # Another set of flags is another run: it must not resume, or overwrite, that of the norm alone.
  if ((${#further[@]})); then
    label+=+$(printf '%s\0' "${further[@]}" | sha256sum | cut -c1-6)
  fi
  run=$work/runs/$experiment/$label-seed$seed
  mkdir -p "$run/stages"
  exec 8>>"$run/lock"
  flock --nonblock 8 || die "$run is in use: the same run is going on elsewhere"
}

# stage NAME COMMAND...: run COMMAND, unless it has finished before with the same words, after
# stages that did too. Training alone takes up what it finds, so it must not find other settings'.
stage() {
  local name=$1 stamp=$run/stages/$1 started=$run/stages/$1.started before
  shift
  key=$(printf '%s\0' "$key" "$@" | sha256sum | cut -d' ' -f1)
  if [[ -f $stamp && $(<"$stamp") == "$key" ]]; then
    say "$experiment $label, seed $seed: $name was done before"
    return
  fi
  before=$(cat "$stamp" "$started" 2>/dev/null || true)
  if [[ $name == train && -n $before && $before != "$key" ]]; then
    die "$run/checkpoints is of other settings or data; remove $run, or choose another --work"
  fi
  say "$experiment $label, seed $seed: $name"
  rm -f "$stamp"
  printf '%s\n' "$key" >"$started.new"
  mv "$started.new" "$started"
  "$@"
  mv "$started" "$stamp"
}

# prepare CORPUS [FLAG...]: raw text to binarised data, by data-prep/CORPUS.py.
prepare() {
  local corpus=$1
  shift
  if [[ -z $raw && -d ${NORM_DATA_DIR:-}/$corpus ]]; then raw=$NORM_DATA_DIR/$corpus; fi
  "$python" "data-prep/$corpus.py" --out "$data" ${raw:+--raw "$raw"} "$@"
  key=$(sha256sum "$data/manifest.json")
}

# flags_of RECIPE [--generation]: its flags, into the array flags.
flags_of() {
  local words
  words=$("$python" -m norm_plugin.recipes "$@")
  mapfile -t flags <<<"$words"
}

# fairseq prints its whole configuration in one line of 15,000 characters; the result holds it too.
hide_settings() { sed --unbuffered "/{'_name': None, 'common'/d"; }

train() {
  "$python" -m norm_plugin.evaluation.checkpoints repair "$run/checkpoints"
  "$python" -m fairseq_cli.train "$data/bin" --log-file "$run/train.log" "$@" | hide_settings
}

# average N: the last N epochs' checkpoints.
average() {
  "$python" -m norm_plugin.evaluation.average --inputs "$run/checkpoints" --last-epochs "$1" \
    --output "$run/averaged.pt"
}

# generate FLAG...: translate the test set with the averaged weights.
generate() {
  "$python" -m fairseq_cli.generate "$data/bin" --user-dir norm_plugin --gen-subset test \
    --path "$run/averaged.pt" --remove-bpe --required-batch-size-multiple 1 "$@" \
    2>&1 >"$run/generate.log.tmp" | hide_settings
  mv "$run/generate.log.tmp" "$run/generate.log"
}

# score RESULTS: write RESULTS/<experiment>/<norm>-seed<N>.json.
score() {
  "$python" -m norm_plugin.evaluation.results --experiment "$experiment" --norm "$label" \
    --seed "$seed" --checkpoint "$run/averaged.pt" --last "$run/checkpoints/checkpoint_last.pt" \
    --generate-log "$run/generate.log" --data "$data" --out "$1"
}

# train_to_score AVERAGED RESULTS: all stages of a run after its data is prepared.
train_to_score() {
  local flags
  flags_of "$recipe"
  stage train train "${flags[@]}" --save-dir "$run/checkpoints" --norm-type "$norm" \
    --seed "$seed" "${further[@]}"
  stage average average "$1"
  flags_of "$recipe" --generation
  stage generate generate "${flags[@]}"
  stage score score "$2"
  say "checkpoints in $run/checkpoints, translations in $run/generate.log"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  printf 'Sourced by the scripts of the experiments, which share these options:\n'
  options_help
fi
