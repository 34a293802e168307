#!/usr/bin/env bash
# Trainings of several norms and seeds by hydra's multirun, a Slurm job each. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/slurm/sweep.sh [--launcher L] CONFIG DATA OVERRIDE...
   as: scripts/slurm/sweep.sh iwslt14_de_en work/data/iwslt14/bin \
         norm=layernorm,powernorm,adanorm common.seed=1,2,3 hydra.launcher.partition=gpu

Runs fairseq-hydra-train --multirun on configs/CONFIG.yaml, once for each combination of the
values, by the launcher L: submitit_slurm (default; needs `pip install hydra-submitit-launcher`
in the environment), or basic, one after the other in one process: only for a try, as fairseq then
carries the best score and the patience of one run into the next. DATA is a prepared bin folder.
Checkpoints come to work/sweeps/CONFIG/<norm>-seed<N>/<the other overrides>, such as
work/sweeps/toy/powernorm-seed2/model.dropout=0.3.
TEXT
}

launcher=submitit_slurm
case ${1:-} in
  -h | --help | '') usage; exit 0 ;;
  --launcher) launcher=${2:?--launcher needs a value}; shift 2 ;;
esac
(($# >= 2)) || { echo 'error: name a CONFIG and its DATA; see --help' >&2; exit 1; }
config=$1 data=$(realpath -- "$2")
shift 2

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sweeps=$(realpath -m -- work/sweeps)
job=()
if [[ $launcher == submitit_slurm ]]; then
  job=(hydra.launcher.gpus_per_node=1 hydra.launcher.timeout_min=2880)
fi
# A sweep gives each job a folder of its own, where relative paths would break.
named=norm,common.seed,task.data,common.user_dir,checkpoint.save_dir  # there already, or the same
exec "${NORM_VENV:-.venv}/bin/fairseq-hydra-train" --multirun --config-dir configs \
  --config-name "$config" "hydra/launcher=$launcher" "hydra.sweep.dir=work/sweeps/$config" \
  "hydra.job.config.override_dirname.exclude_keys=[$named]" hydra.job.chdir=false "task.data=$data" "common.user_dir=$PWD/norm_plugin" "${job[@]}" \
  "checkpoint.save_dir='$sweeps/$config/\${model.norm_type}-seed\${common.seed}/\${hydra:job.override_dirname}'" "$@"
