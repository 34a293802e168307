#!/usr/bin/env bash
# The options that the scripts of the experiments share. Sourced by lib.sh.
# shellcheck disable=SC2034,SC2154  # what is set here is read there, and the other way round
set -euo pipefail

# Set by the options below; a script may set other defaults after sourcing this.
norm=layernorm seed=1 work=$root/work raw='' results='' user_dir='' recipe='' gpus=auto subword=''
smoke='' dry='' tensorboard='' srun='' change_batch='' fold='' precision=() further=() data_flags=()

options_help() {
  cat <<'TEXT'
  --norm-type X   the norm of every site (default layernorm); `python -m norm_plugin --list`
  --user-dir DIR  a fairseq --user-dir of your own, which imports norm_plugin: its norms are known
                  to --norm-type, and all stages load it
  --seed N        seed of weights, dropout and order of batches (default 1)
  --raw DIR       folder with the raw corpus (default: NORM_DATA_DIR/<corpus>, else downloaded)
  --work DIR      where data, checkpoints and translations go (default: work in the checkout)
  --results DIR   where <experiment>/<norm>-seed<N>.json goes (default: results in --work)
  --subword S     subword-nmt (default), or sentencepiece, trained on raw text
  --gpus N        GPUs of this machine to train on (default: one, or the CPU where there is none);
                  the batch of an update stays that of the recipe, or N is refused
  --change-batch  with --gpus: let the batch of an update grow with the GPUs instead
  --fp16, --bf16  train in half precision (on a GPU)
  --fold-norms    translate with the norms folded into the linear maps after them, where possible
  --smoke         the whole path in minutes on two cores: a tiny model and 60 updates
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
        [[ -n ${2:-} ]] || die "$1 needs a value; see --help"
        value_option "$1" "$2"
        shift ;;
      *) unknown_option "$1" ;;
    esac
    shift
  done
  further=("${precision[@]}" "${further[@]}")
  results=${results:-$work/results}
  [[ $work != *:* ]] || die "--work is $work; fairseq splits paths at a colon, so choose another"
}

value_option() {
  case $1 in
    --norm-type) norm=$2 ;;
    --seed)  # numpy takes 32 bits, and fairseq adds the number of the epoch
      [[ $2 =~ ^(0|[1-9][0-9]{0,9})$ && $2 -lt 2147483648 ]] ||
        die "--seed is $2; it must be a whole number from 0 to 2147483647"
      seed=$2 ;;
    --raw) raw=$(from_here "$2") ;;
    --work) work=$(from_here "$2") ;;
    --results) results=$(from_here "$2") ;;
    --user-dir)
      user_dir=$(from_here "$2")
      [[ -d $user_dir ]] || die "--user-dir is $2, which is no folder" ;;
    --subword) subword=$2 ;;
    --gpus) gpus=$2 ;;
    *) script_option "$1" "$2" ;;
  esac
}

# from_here PATH: absolute. No realpath: links stay as the user wrote them.
from_here() { if [[ $1 == /* ]]; then printf '%s' "$1"; else printf '%s' "$here/$1"; fi; }

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
