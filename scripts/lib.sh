#!/usr/bin/env bash
# What the scripts of the experiments share: stages, and the steps of a run. Sourced.
set -euo pipefail

here=$PWD  # of the user, whose relative paths count from there
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${NORM_VENV:-.venv}/bin/python  # used from the root only
# fairseq calls torch by names that torch warns about, a screen of it at each start
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
# Before a command: it ends when this shell does, even where that alone is killed.
tied=(setpriv --pdeathsig TERM --)

# shellcheck source=scripts/options.sh
source scripts/options.sh

# --- commands and stages --------------------------------------------------------------------

# act COMMAND...: run it, or with --dry-run print it.
act() { if [[ $dry ]]; then print_command "$@"; else "${tied[@]}" "$@"; fi; }

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
    "${tied[@]}" "$@" 2>&1 >"$file.tmp" | hide_settings >&2
    mv "$file.tmp" "$file"
  fi
}

# begin CONFIG CORPUS [VARIANT]: name the run of configs/CONFIG.yaml on the data of
# data-prep/CORPUS.py, read its flags, and keep a second one out of its folder.
begin() {
  scripts/setup.sh >&2  # also for --dry-run: it reads the recipes
  "${tied[@]}" true 2>/dev/null ||
    die "no setpriv command that knows --pdeathsig; install util-linux 2.33 or newer"
  local config=$1
  corpus=$2 key='' label=$norm variant=${fold:+-folded}
  case $subword in subword-nmt) subword='' ;; '' | sentencepiece) ;;
    *) die "--subword is $subword; choose subword-nmt or sentencepiece" ;;
  esac
  experiment=$config${recipe:+_$recipe}${subword:+_$subword}${smoke:+_$smoke}
  data=$work/data/$corpus${3:+-$3}${subword:+-$subword}
  # Another set of flags is another run: it must not resume, or overwrite, that of the norm alone.
  # So are several GPUs: their batch may be another, and each has running statistics of its own.
  if [[ $gpus != auto && $gpus != 1 ]]; then label+=+${gpus}gpus${change_batch:+-batch}; fi
  if ((${#further[@]})); then
    label+=+$(printf '%s\0' "${further[@]}" | sha256sum | cut -c1-6)
  fi
  run=$work/runs/$experiment/$label-seed$seed
  result=$results/$experiment/$label$variant-seed$seed.json
  read_recipe "$config"
  if [[ $dry ]]; then
    print_command cd "$root"
    print_command mkdir -p "$run"
    return
  fi
  make_folder "$run/stages" --work
  make_folder "$results/$experiment" --results
  exec 8>>"$run/lock"
  flock --nonblock 8 || die "$run is in use: the same run is going on elsewhere"
  rm -f "$run"/*.tmp "$run"/stages/*.new "$result".*.tmp  # of a run that was killed
}

# make_folder FOLDER OPTION: make a folder to write in, or name the option that puts it elsewhere.
make_folder() {
  local problem
  problem=$(mkdir -p "$1" 2>&1) || die "${problem#mkdir: }; choose another $2"
  [[ -w $1 ]] || die "$1 cannot be written; choose another $2"
}

# recipe_arrays CONFIG: its flags as bash code; an error where a flag, an option or the seed is wrong.
recipe_arrays() {
  "$python" -m norm_plugin.experiments.recipes "$1" "norm=$norm" "common.seed=$seed" \
    ${recipe:+"recipe=$recipe"} ${smoke:+"size=$smoke"} --arrays --check --gpus "$gpus" \
    ${dry:+--elsewhere} ${srun:+--elsewhere} ${change_batch:+--change-batch} \
    ${user_dir:+--user-dir "$user_dir"} --further "${further[@]}"
}

# read_recipe CONFIG: its flags, into the arrays training, averaging and generation.
read_recipe() {
  local arrays
  arrays=$(recipe_arrays "$1")
  training=() averaging=() generation=()
  eval "$arrays"
  if [[ $user_dir ]]; then  # its norms are changed and tried again
    key=$(cd "$user_dir" && find -L . -name '*.py' -print0 | sort -z | xargs -0r sha256sum)
  fi
}

# product NAME: the file that stage NAME makes.
product() {
  case $1 in
    train) printf '%s' "$run/checkpoints/checkpoint_last.pt" ;;
    average) printf '%s' "$run/averaged.pt" ;;
    generate*) printf '%s' "$run/$1.log" ;;
    score*) printf '%s' "$result" ;;
  esac
}

# check_product NAME: end the script where stage NAME has ended well and not made what it was to.
check_product() {
  [[ -s $(product "$1") ]] || die "$1 ended without $(product "$1"); its own lines above say why$(
    if [[ $1 == train && $srun ]]; then printf '; does torch see the GPUs in srun?'; fi)"
  case $1 in
    train) act "$python" -m norm_plugin.experiments.products train "$run/checkpoints" \
      "${averaging[@]}" ;;
    generate*) act "$python" -m norm_plugin.experiments.products generate "$(product "$1")" \
      --data "$data" ;;
  esac
}

# forget NAME: from now on stage NAME and those that work on what it makes are not done.
forget() {
  local -a later=()
  case $1 in
    train) later=(average generate{,-folded} score{,-folded}) ;;
    average) later=(generate{,-folded} score{,-folded}) ;;
    generate*) later=("score${1#generate}") ;;
  esac
  (cd "$run/stages" && rm -f -- "$1" "${later[@]}")
}

# stage NAME COMMAND...: run COMMAND, unless it has finished before with the same words, after
# stages that did too. Training alone takes up what it finds, so it must not find other settings'.
stage() {
  local name=$1 stamp=$run/stages/$1 started=$run/stages/$1.started before start=$SECONDS
  shift
  key=$(printf '%s\0' "$key" "$@" | sha256sum | cut -d' ' -f1)
  if [[ -f $stamp && $(<"$stamp") == "$key" ]]; then
    if [[ -s $(product "$name") ]]; then
      say "$experiment $label, seed $seed: $name was done before"
      return
    fi
    say "$experiment $label, seed $seed: $name was done before, but $(product "$name") is gone"
  fi
  before=$(cat "$stamp" "$started" 2>/dev/null || true)
  if [[ $name == train && -n $before && $before != "$key" ]]; then
    die "$run/checkpoints is of other settings or data; remove $run, or choose another --work"
  fi
  say "$experiment $label, seed $seed: $name"
  if [[ $dry ]]; then "$@"; return; fi
  forget "$name"
  printf '%s\n' "$key" >"$started.new"
  mv "$started.new" "$started"
  "$@"
  check_product "$name"
  printf '%s\n' $((SECONDS - start)) >"$run/stages/$name.seconds"
  mv "$started" "$stamp"
}

# --- the steps of a run ---------------------------------------------------------------------

# Raw text to binarised data. Each stage sees for itself whether its inputs and settings have
# changed, as several runs share the data.
prepare() {
  local stage source=${NORM_DATA_DIR:+$(from_here "$NORM_DATA_DIR/$corpus")}
  if [[ -z $raw && -d $source ]]; then raw=$source; fi
  for stage in fetch prepare binarize; do
    say "$experiment: $stage"
    act "$python" "data-prep/$corpus.py" --out "$data" ${raw:+--raw "$raw"} --only "$stage" \
      ${subword:+--subword "$subword"} "${data_flags[@]}"
  done
  if [[ -f $data/manifest.json ]]; then key+=$(sha256sum "$data/manifest.json"); fi
}

train() {
  local -a launch=() unkeyed=(--log-file "$run/train.log") command
  if [[ $tensorboard ]]; then unkeyed+=(--tensorboard-logdir "$run/tensorboard"); fi
  if [[ $srun ]]; then
    # fairseq asks Slurm for the rest; the port must be one that no other job on the node takes
    launch=(srun --kill-on-bad-exit=1)
    unkeyed+=(--distributed-port $((20000 + ${SLURM_JOB_ID:-0} % 20000)))
  fi
  command=("${launch[@]}" "$python" -m fairseq_cli.train "$data/bin" "${unkeyed[@]}" "$@")
  act "$python" -m norm_plugin.checkpoints.repair "$run/checkpoints"
  if [[ $dry ]]; then act "${command[@]}"; return; fi
  "${tied[@]}" "${command[@]}" |
    "${tied[@]}" "$python" scripts/progress.py --runs "$work/runs/$experiment" -- "$@"
}

average() {
  act "$python" -m norm_plugin.checkpoints.average --inputs "$run/checkpoints" \
    --output "$run/averaged.pt" ${user_dir:+--user-dir "$user_dir"} "$@"
}

# generate FLAG...: translate the test set with the averaged weights.
generate() {
  act_to "$(product "generate$variant")" "$python" -m fairseq_cli.generate "$data/bin" \
    --user-dir "${user_dir:-norm_plugin}" --gen-subset test --path "$run/averaged.pt" \
    "--remove-bpe${subword:+=$subword}" --required-batch-size-multiple 1 "$@"
}

# score RESULTS: write RESULTS/<experiment>/<norm>-seed<N>.json.
score() {
  act "$python" -m norm_plugin.experiments.results --experiment "$experiment" \
    --norm "$label$variant" --seed "$seed" --checkpoint "$run/averaged.pt" \
    --last "$run/checkpoints/checkpoint_last.pt" ${user_dir:+--user-dir "$user_dir"} \
    --generate-log "$(product "generate$variant")" --data "$data" --out "$1"
}

# train_to_score: all stages of a run after its data is prepared.
train_to_score() {
  stage train train "${training[@]}" --save-dir "$run/checkpoints"
  stage average average "${averaging[@]}"
  stage "generate$variant" generate "${generation[@]}" ${fold:+"$fold"}
  stage "score$variant" score "$results"
  say "checkpoints in $run/checkpoints, translations in $(product "generate$variant")"
  say "result: $result"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  printf 'Sourced by the scripts of the experiments, which share these options:\n'
  options_help
fi
