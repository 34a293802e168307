"""fairseq's commands, run as a user runs them, on a small toy corpus."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from forked import ROOT, run_forked

PLUGIN = ROOT / "norm_plugin"
# One layer, 512 tokens per batch: an update takes a few hundredths of a second.
SMALL = {
    "--encoder-layers": 1,
    "--decoder-layers": 1,
    "--max-tokens": 512,
    "--optimizer": "adam",
    "--lr": 0.003,
    "--lr-scheduler": "inverse_sqrt",
    "--warmup-updates": 4,
    "--criterion": "label_smoothed_cross_entropy",
    "--label-smoothing": 0.1,
    "--dropout": 0.1,
    "--seed": 3,
    "--log-format": "json",
    "--log-interval": 1,
    "--num-workers": 0,
    "--task": "translation",
}


def run(module, *argv, check=True, stdin=""):
    """Run ``python -m MODULE ARGV`` with one thread; returns the finished process."""
    return checked(run_forked(module, *argv, stdin=stdin), check)


def run_without_plugin(module, *argv, check=True):
    """Run the command in a fresh interpreter, which has not imported ``norm_plugin``."""
    result = subprocess.run(
        [sys.executable, "-m", module, *map(str, argv)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return checked(result, check)


def checked(result, check):
    """A process that has ended well, or is not expected to."""
    if check and result.returncode:
        raise AssertionError(
            f"{result.args} failed:\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
        )
    return result


def train(data, save_dir, *argv, arch="norm_transformer_multi30k_tiny", plugin=PLUGIN, **kwargs):
    """fairseq-train on the CPU, with the settings above unless ``argv`` says otherwise."""
    flags = [part for pair in SMALL.items() for part in pair]
    user_dir = ["--user-dir", plugin] if plugin else []
    command = [data, "--cpu", "--arch", arch, *user_dir, *flags, "--save-dir", save_dir, *argv]
    start = run if plugin else run_without_plugin
    return start("fairseq_cli.train", *command, **kwargs)


def losses(result):
    """The loss of every update as fairseq printed it, by number of updates."""
    by_update = {}
    for line in (result.stdout + result.stderr).splitlines():
        _, found_here, record = line.partition("| train_inner | ")
        if found_here:
            values = json.loads(record)
            by_update[int(values["num_updates"])] = (values["loss"], values["gnorm"])
    return by_update


def generate(data, checkpoint, *argv):
    """The translations of fairseq-generate, by sentence."""
    result = run(
        *("fairseq_cli.generate", data, "--user-dir", PLUGIN, "--path", checkpoint, "--cpu"),
        *("--beam", 2, "--required-batch-size-multiple", 1, "--max-len-b", 20, *argv),
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("H-")]
    return {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
