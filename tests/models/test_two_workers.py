"""Two workers of fairseq-train, started by hand: on a CPU it starts none itself."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
import torch
from forked import be, run_as_main

from commands import PLUGIN, ROOT, SMALL
from in_process import NARROW

WORKER = Path(__file__).with_name("one_worker.py")
APART, SYNCED = "self_attn_layer_norm", "final_layer_norm"
# Admin measures the branches of the decoder in the first batches of all workers together
NORMS = ("--norm-placement", "pre", "--norm-placement-decoder", "admin")
NORMS += ("--norm-warmup-updates", 2)
NORMS += ("--norm-type-encoder-self", "powernorm", "--norm-type-encoder-ffn", "batchnorm")
# the second epoch is saved without a validation before it
FLAGS = ("--validate-interval", 3, "--max-tokens", 256, "--save-interval-updates", 3)
FLAGS += ("--update-epoch-batch-itr", "True")  # as the recipes: epoch 2 needs it to resume alike
TWO_EPOCHS = (*FLAGS, "--max-epoch", 2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(data, folder, *flags, rank=0, killed_before=0):
    """Fork a worker; returns its process. What it prints goes to ``workerN.txt``."""
    small = [word for pair in SMALL.items() for word in pair]
    argv = [WORKER, folder / f"worker{rank}.tensors", killed_before, data]
    argv += ["--user-dir", PLUGIN, *small, *NARROW, "--cpu", "--save-dir", folder]
    argv += ["--arch", "norm_transformer_multi30k_tiny", *NORMS, *flags]
    with open(folder / f"worker{rank}.txt", "w") as output:
        child = os.fork()
        if child == 0:
            streams = (output.fileno(), output.fileno())
            be(run_as_main, [str(word) for word in argv], streams, ROOT)
    return child


def train(data, folder, *flags, workers=2, killed=None, killed_before=0):
    """Train to the end, or until the worker ``killed`` kills itself; returns what each recorded."""
    together = ()
    if workers > 1:
        together = ("--ddp-backend", "legacy_ddp", "--distributed-backend", "gloo")
        together += ("--distributed-world-size", workers, "--distributed-no-spawn")
        together += ("--distributed-init-method", f"tcp://127.0.0.1:{free_port()}")
    children = []
    for rank in range(workers):
        before = killed_before if rank == killed else 0
        own = ("--distributed-rank", rank) if together else ()
        flags_of_rank = (*flags, *together, *own)
        children.append(start(data, folder, *flags_of_rank, rank=rank, killed_before=before))
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    printed = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("worker?.txt")))
    if killed is None:
        assert statuses == [0] * workers, printed
        return [torch.load(folder / f"worker{rank}.tensors") for rank in range(workers)]
    assert statuses[killed] == -signal.SIGKILL, printed
    assert statuses[1 - killed] > 0, printed  # it fails when it next waits for the other one
    return []


@pytest.fixture(scope="module")
def two_workers(toy, tmp_path_factory):
    """What both workers recorded, and the folder of their run of two epochs."""
    folder = tmp_path_factory.mktemp("workers")
    recorded = train(toy, folder, *TWO_EPOCHS)
    return [record["averaged"] for record in recorded], folder


def test_workers_average_what_they_hold_apart(two_workers):
    recorded, _ = two_workers
    # six times in an epoch, validated and then saved; and at the end of both, saved only
    assert len(recorded[0]) == len(recorded[1]) == 6 * 2 + 2
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


def read(path):
    """Return the parts of a checkpoint that are the state of a training."""
    state = torch.load(path, weights_only=True)
    updates = state["optimizer_history"][-1]["num_updates"]
    return {
        "model": state["model"],
        "last_optimizer_state": state["last_optimizer_state"],
        "num_updates": updates,
    }


def assert_same(state, expected):
    """Assert equality to the last bit."""
    torch.testing.assert_close(state, expected, rtol=0, atol=0, equal_nan=False)


def test_a_stopped_training_ends_with_the_same_bits(two_workers, toy, tmp_path):
    _, undisturbed = two_workers
    train(toy, tmp_path, *TWO_EPOCHS, "--max-update", 3)  # in the first epoch, where it is saved
    train(toy, tmp_path, *TWO_EPOCHS, killed=0, killed_before=17)  # in the second
    train(toy, tmp_path, *TWO_EPOCHS)
    for name in ("checkpoint2.pt", "checkpoint_last.pt"):
        assert_same(read(tmp_path / name), read(undisturbed / name))
    last = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert last["cfg"]["checkpoint"]["load_checkpoint_on_all_dp_ranks"] is False  # as given


def test_the_number_of_workers_may_change(two_workers, toy, tmp_path):
    _, folder = two_workers
    shutil.copy(folder / "checkpoint_last.pt", tmp_path)
    for epoch, workers in ((3, 1), (4, 2)):
        before = read(tmp_path / "checkpoint_last.pt")
        flags = (*FLAGS, "--max-epoch", epoch, "--no-epoch-checkpoints")
        for record in train(toy, tmp_path, *flags, workers=workers):
            assert_same(record["loaded"], before)
        assert read(tmp_path / "checkpoint_last.pt")["num_updates"] > before["num_updates"]
