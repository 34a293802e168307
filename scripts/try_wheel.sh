#!/usr/bin/env bash
# Test an installed norm_plugin outside the checkout. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

usage() {
  cat <<EOT
Usage: scripts/try_wheel.sh PYTHON

Test the norm_plugin that PYTHON has installed with its extras fairseq and analysis, in a folder
outside the checkout: the folder for --user-dir, a norm, a smoke sweep of the toy corpus with its
report, and two updates of fairseq-train.
With NORM_KERNELS=cpu it fails if the C++ kernels are not built.
EOT
}

case ${1:-} in
  -h | --help) usage; exit ;;
  '') usage >&2; exit 2 ;;
esac
python=$(realpath -s -- "$1")
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd "$folder"

user_dir=$("$python" -m norm_plugin)
printf 'norm_plugin: %s\n' "$user_dir"
if [[ $user_dir == "$root"/norm_plugin ]]; then
  printf 'error: this is the checkout, not an installed wheel\n' >&2
  exit 1
fi
"$python" -c 'import torch, norm_plugin.kernels.choice as choice
from norm_plugin.norms import build_norm
y = build_norm("powernorm", 8)(torch.randn(2, 3, 8))
print("powernorm:", *y.shape, choice.describe(choice.resolve(None)))'
"$python" -m norm_plugin list >list.txt
"$python" -m norm_plugin sweep toy --smoke norm=layernorm,none
"$python" -m norm_plugin report work/results/toy_smoke --out page
"$(dirname "$python")/fairseq-train" work/data/toy/bin --user-dir "$user_dir" --cpu --num-workers 0 \
  --arch norm_transformer_multi30k_tiny --norm-type powernorm --optimizer adam --lr 0.001 \
  --max-tokens 1000 --max-update 2 --log-format simple --save-dir checkpoints 2>&1 |
  tee train.log | grep 'done training' || { cat train.log; exit 1; }
printf 'passed\n'
