#!/usr/bin/env bash
# One training on several GPUs or nodes under Slurm, a job for sbatch. See --help.
#SBATCH --job-name=norm_plugin
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=48:00:00
#SBATCH --output=slurm-%j.txt
#SBATCH --open-mode=append
#SBATCH --requeue
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: sbatch [SBATCH OPTIONS] scripts/slurm/train.sh [--cpu] EXPERIMENT [OPTIONS] [-- FLAGS]
   as: sbatch --nodes 4 scripts/slurm/train.sh run_wmt14 --recipe powernorm --fp16
   or: sbatch --nodes 2 --gpus-per-node 0 scripts/slurm/train.sh --cpu run_multi30k --preset cpu \
            -- --max-tokens 2048 --update-freq 2

A template: submit it from the root of the checkout, on a file system that all nodes see, after
scripts/setup.sh. It runs scripts/EXPERIMENT.sh with its OPTIONS and the GPUs of the job. srun
starts one process per node, and fairseq's own Slurm start-up finds the others and starts one
process per GPU. The batch of an update stays that of the experiment. Preparing, averaging,
translating and scoring run on the first node. A requeued job resumes, and so does its log.

--cpu trains on CPUs, with one worker per task of the job; they exchange gradients by gloo.

For sweeps over norms and seeds, one job each: norm-plugin sweep --help
TEXT
}

case ${1:-} in
  -h | --help | '') usage; exit 0 ;;
esac
[[ -n ${SLURM_JOB_ID:-} ]] || { echo 'error: not in a Slurm job; submit it by sbatch' >&2; exit 1; }
# Not the folder of this file: Slurm runs a copy of it.
cd "${SLURM_SUBMIT_DIR:?}"
on_cpu=no
if [[ $1 == --cpu ]]; then
  on_cpu=yes
  shift
fi
experiment=${1:?'the name of an experiment is missing'}
shift
[[ -x scripts/$experiment.sh ]] ||
  { echo "error: no scripts/$experiment.sh here; submit from the root of the checkout" >&2; exit 1; }
if [[ $on_cpu == yes ]]; then
  exec "scripts/$experiment.sh" --srun --gpus "${SLURM_NTASKS:-1}" "$@"
fi
if [[ ! ${SLURM_GPUS_ON_NODE:-} =~ ^[1-9][0-9]*$ ]]; then
  printf 'error: this job has no GPUs (SLURM_GPUS_ON_NODE is %s); ask for them, as in %s\n' \
    "'${SLURM_GPUS_ON_NODE:-}'" 'sbatch --gpus-per-node=8, or train on CPUs with --cpu' >&2
  exit 1
fi
gpus=$((${SLURM_NNODES:-1} * SLURM_GPUS_ON_NODE))
exec "scripts/$experiment.sh" --srun --gpus "$gpus" "$@"
