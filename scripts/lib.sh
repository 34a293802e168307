#!/usr/bin/env bash
# What the scripts of the experiments share: options, stages, and the steps of a run. Sourced.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${NORM_VENV:-.venv}/bin/python  # used from the root only
# fairseq calls torch by names that torch warns about, a screen of it at each start
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}

# Set by the options below; a script may set other defaults after sourcing this.
norm=layernorm seed=1 work=$root/work raw='' recipe='' gpus=auto subword='' results=results
smoke='' dry='' tensorboard='' srun='' change_batch='' fold='' precision=() further=() data_flags=()

options_help() {
  cat <<'TEXT'
  --norm-type X   the norm of every site (default layernorm); `python -m norm_plugin --list`
  --seed N        seed of weights, dropout and order of batches (default 1)
  --raw DIR       folder with the raw corpus (default: NORM_DATA_DIR/<corpus>, else downloaded)
  --work DIR      where data, checkpoints and translations go (default: work)
  --subword S     subword-nmt (default), or sentencepiece, trained on raw text
  --gpus N        GPUs of this machine to train on (default: one, or the CPU where there is none);
                  the batch of an update stays that of the recipe, or N is refused
  --change-batch  with --gpus: let the batch of an update grow with the GPUs instead
  --fp16, --bf16  train in half precision (on a GPU)
  --fold-norms    translate with the norms folded into the linear maps after them, where possible
  --smoke         the whole path in minutes on two cores: a tiny model and 60 updates; the result
                  stays in the --work folder
  --tensorboard   write the curves for TensorBoard to <run>/tensorboard
  --srun          inside a Slurm job: start the training by srun; see scripts/slurm/train.sh
  --dry-run       print the commands that would run, ready to paste, and do nothing else
  -- FLAGS        further flags of fairseq-train, the norm's own options among them

Stopped at any point, the same command goes on where it was. One that has finished does nothing.
TEXT
}

die() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

say() {
  if [[ $dry ]]; then printf '# %s\n' "$1"; else printf '%s  %s\n' "$(date +%H:%M:%S)" "$1"; fi
}

# parse_options "$@": the shared options; script_option, where defined, takes any other.
parse_options() {
  while (($#)); do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --) further+=("${@:2}"); break ;;
      --smoke) smoke=smoke ;;
      --dry-run) dry=1 ;;
      --tensorboard) tensorboard=1 ;;
      --srun) srun=1 ;;
      --change-batch) change_batch=1 ;;
      --fold-norms) fold=--fold-norms ;;
      --fp16 | --bf16) precision=("$1") ;;
      --*)
        [[ $# -ge 2 ]] || die "$1 needs a value; see --help"
        value_option "$1" "$2"
        shift ;;
      *) unknown_option "$1" ;;
    esac
    shift
  done
  further=("${precision[@]}" "${further[@]}")
}

value_option() {
  case $1 in
    --norm-type) norm=$2 ;;
    --seed) seed=$2 ;;
    --raw) raw=$2 ;;
    --work) work=$2 ;;
    --subword) subword=$2 ;;
    --gpus) gpus=$2 ;;
    *) script_option "$1" "$2" ;;
  esac
}

# script_option NAME VALUE: an option of one script alone; scripts redefine it.
script_option() { unknown_option "$1"; }

unknown_option() { die "unknown option $1; see --help (flags of fairseq-train come after --)"; }

# The one of the scripts whose experiment has the recipes of several papers.
recipe_help() {
  cat <<'TEXT'
  --recipe R      the paper whose hyper-parameters are used: adanorm (default; Xu et al. 2019) or
                  powernorm (Shen et al. 2020), where that has results on this corpus
TEXT
}

recipe_option() {
  [[ $1 == --recipe ]] || unknown_option "$1"
  recipe=$2
}

# --- commands and stages --------------------------------------------------------------------

# act COMMAND...: run it, or with --dry-run print it.
act() { if [[ $dry ]]; then print_command "$@"; else "$@"; fi; }

print_command() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}

# fairseq prints its whole configuration in one line of 15,000 characters; the result holds it too.
hide_settings() { sed --unbuffered "/{'_name': None, 'common'/d"; }

# act_to FILE COMMAND...: what COMMAND prints becomes FILE, when it has ended well.
act_to() {
  local file=$1
  shift
  if [[ $dry ]]; then
    printf '%s >%q\n' "$(print_command "$@")" "$file"
  else
    "$@" 2>&1 >"$file.tmp" | hide_settings >&2
    mv "$file.tmp" "$file"
  fi
}

# begin CONFIG CORPUS [VARIANT]: name the run of configs/CONFIG.yaml on the data of
# data-prep/CORPUS.py, read its flags, and keep a second one out of its folder.
begin() {
  scripts/setup.sh >&2  # also for --dry-run: it reads the recipes
  local config=$1
  corpus=$2 key='' label=$norm
  case $subword in subword-nmt) subword='' ;; '' | sentencepiece) ;;
    *) die "--subword is $subword; choose subword-nmt or sentencepiece" ;;
  esac
  experiment=$config${recipe:+_$recipe}${subword:+_$subword}${smoke:+_$smoke}
  data=$work/data/$corpus${3:+-$3}${subword:+-$subword}
  if [[ $smoke ]]; then results=$work/results; fi
  # Another set of flags is another run: it must not resume, or overwrite, that of the norm alone.
  if ((${#further[@]})); then
    label+=+$(printf '%s\0' "${further[@]}" | sha256sum | cut -c1-6)
  fi
  run=$work/runs/$experiment/$label-seed$seed
  read_recipe "$config" "norm=$norm" "common.seed=$seed" ${recipe:+"recipe=$recipe"} \
    ${smoke:+"size=$smoke"}
  if [[ $dry ]]; then
    print_command cd "$root"
    print_command mkdir -p "$run"
    return
  fi
  mkdir -p "$run/stages"
  exec 8>>"$run/lock"
  flock --nonblock 8 || die "$run is in use: the same run is going on elsewhere"
}

# read_recipe CONFIG OVERRIDE...: its flags, into the arrays training, averaging and generation.
read_recipe() {
  local arrays
  arrays=$("$python" -m norm_plugin.recipes "$@" --arrays --gpus "$gpus" \
    ${dry:+--elsewhere} ${srun:+--elsewhere} ${change_batch:+--change-batch} \
    --further "${further[@]}")
  training=() averaging=() generation=()
  eval "$arrays"
}

# stage NAME COMMAND...: run COMMAND, unless it has finished before with the same words, after
# stages that did too. Training alone takes up what it finds, so it must not find other settings'.
stage() {
  local name=$1 stamp=$run/stages/$1 started=$run/stages/$1.started before start=$SECONDS
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
  if [[ $dry ]]; then "$@"; return; fi
  rm -f "$stamp"
  printf '%s\n' "$key" >"$started.new"
  mv "$started.new" "$started"
  "$@"
  printf '%s\n' $((SECONDS - start)) >"$run/stages/$name.seconds"
  mv "$started" "$stamp"
}

# --- the steps of a run ---------------------------------------------------------------------

# Raw text to binarised data. Each stage sees for itself whether its inputs and settings have
# changed, as several runs share the data.
prepare() {
  if [[ -z $raw && -d ${NORM_DATA_DIR:-}/$corpus ]]; then raw=$NORM_DATA_DIR/$corpus; fi
  local stage
  for stage in fetch prepare binarize; do
    say "$experiment: $stage"
    act "$python" "data-prep/$corpus.py" --out "$data" ${raw:+--raw "$raw"} --only "$stage" \
      ${subword:+--subword "$subword"} "${data_flags[@]}"
  done
  if [[ -f $data/manifest.json ]]; then key=$(sha256sum "$data/manifest.json"); fi
}

train() {
  local -a launch=() unkeyed=(--log-file "$run/train.log") report=(cat)
  if [[ $tensorboard ]]; then unkeyed+=(--tensorboard-logdir "$run/tensorboard"); fi
  if [[ $srun ]]; then
    # fairseq asks Slurm for the rest; the port must be one that no other job on the node takes
    launch=(srun --kill-on-bad-exit=1)
    unkeyed+=(--distributed-port $((20000 + ${SLURM_JOB_ID:-0} % 20000)))
  fi
  if [[ -z $dry ]]; then report=("$python" scripts/progress.py --runs "$work/runs/$experiment" -- "$@"); fi
  act "$python" -m norm_plugin.evaluation.checkpoints repair "$run/checkpoints"
  act "${launch[@]}" "$python" -m fairseq_cli.train "$data/bin" "${unkeyed[@]}" "$@" |
    "${report[@]}"
}

average() {
  act "$python" -m norm_plugin.evaluation.average --inputs "$run/checkpoints" \
    --output "$run/averaged.pt" "$@"
}

# generate FLAG...: translate the test set with the averaged weights.
generate() {
  act_to "$run/generate.log" "$python" -m fairseq_cli.generate "$data/bin" --user-dir norm_plugin \
    --gen-subset test --path "$run/averaged.pt" "--remove-bpe${subword:+=$subword}" \
    --required-batch-size-multiple 1 "$@"
}

# score RESULTS: write RESULTS/<experiment>/<norm>-seed<N>.json.
score() {
  act "$python" -m norm_plugin.evaluation.results --experiment "$experiment" --norm "$label" \
    --seed "$seed" --checkpoint "$run/averaged.pt" --last "$run/checkpoints/checkpoint_last.pt" \
    --generate-log "$run/generate.log" --data "$data" --out "$1"
}

# train_to_score: all stages of a run after its data is prepared.
train_to_score() {
  stage train train "${training[@]}" --save-dir "$run/checkpoints"
  stage average average "${averaging[@]}"
  stage generate generate "${generation[@]}" ${fold:+"$fold"}
  stage score score "$results"
  say "checkpoints in $run/checkpoints, translations in $run/generate.log"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  printf 'Sourced by the scripts of the experiments, which share these options:\n'
  options_help
fi
