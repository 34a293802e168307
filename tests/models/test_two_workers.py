"""Two workers of fairseq-train, started by hand: on a CPU it starts none itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commands import PLUGIN, ROOT, SMALL
from in_process import NARROW

WORKER = Path(__file__).with_name("one_worker.py")
APART, SYNCED = "self_attn_layer_norm", "final_layer_norm"
# Admin measures the branches of the decoder in the first batches of all workers together
NORMS = ("--norm-placement", "pre", "--norm-placement-decoder", "admin")
NORMS += ("--norm-warmup-updates", 2)
NORMS += ("--norm-type-encoder-self", "powernorm", "--norm-type-encoder-ffn", "batchnorm")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(rank, port, data, folder, *flags):
    small = [word for pair in SMALL.items() for word in pair]
    words = [WORKER, folder / f"worker{rank}.tensors", data, "--user-dir", PLUGIN, *small, *NARROW]
    words += ["--arch", "norm_transformer_multi30k_tiny", "--cpu", "--ddp-backend", "legacy_ddp"]
    words += ["--distributed-backend", "gloo", "--distributed-world-size", 2]
    words += ["--distributed-rank", rank, "--distributed-no-spawn"]
    words += ["--distributed-init-method", f"tcp://127.0.0.1:{port}", "--save-dir", folder]
    return subprocess.Popen(
        [sys.executable, *map(str, [*words, *NORMS, *flags])],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def two_workers(toy, tmp_path_factory):
    """What both workers recorded, and the folder of their run of two epochs."""
    folder = tmp_path_factory.mktemp("workers")
    # the second epoch is saved without a validation before it
    flags = ("--max-epoch", 2, "--validate-interval", 3, "--max-tokens", 256)
    port = free_port()
    workers = [start(rank, port, toy, folder, *flags) for rank in range(2)]
    try:
        outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs[0][-3000:]
    recorded = [torch.load(folder / f"worker{rank}.tensors") for rank in range(2)]
    return recorded, folder


def test_workers_average_what_they_hold_apart(two_workers):
    recorded, _ = two_workers
    # at the end of both epochs, saved without validation, and of the last validated one
    assert len(recorded[0]) == len(recorded[1]) >= 2
    first, second = (record[0] for record in recorded)
    for key, value in first[0].items():
        apart = APART in key and value.is_floating_point()
        assert torch.equal(second[0][key], value) != apart, key
        assert torch.equal(first[1][key], second[1][key]), key
        if apart:
            # one sum, rounded once (6e-8), and an exact half
            mean = (value + second[0][key]) / 2
            torch.testing.assert_close(first[1][key], mean, rtol=1e-6, atol=1e-7)
    assert any(SYNCED in key for key in first[0])
    starts = [value for key, value in first[0].items() if key.endswith(".placement.start")]
    assert starts and all((start[1:] > 1).all() for start in starts)


@pytest.mark.parametrize("epoch", [1, 2])
def test_the_checkpoint_is_that_of_all_workers(epoch, two_workers):
    recorded, folder = two_workers
    saved = torch.load(folder / f"checkpoint{epoch}.pt", weights_only=True)["model"]
    after = [
        [statistics for _, statistics in record if matches(saved, statistics)]
        for record in recorded
    ]
    assert after[0] and after[1]


def matches(saved, statistics):
    return all(torch.equal(saved[key], value) for key, value in statistics.items())
