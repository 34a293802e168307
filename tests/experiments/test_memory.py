"""The peak memory of the commands of a run."""

from __future__ import annotations

import os
import sys

import pytest

from norm_plugin.experiments.processes import CommandFailedError, run_command
from norm_plugin.experiments.stamps import Stamps

MIB = 2**20
HOLD = "import sys; block = b'x' * (int(sys.argv[1]) * 2**20); print(len(block), end='\\n')"


def measure(tmp_path, size):
    """The memory of a Python that holds so many MiB."""
    lock = os.open(tmp_path / "lock", os.O_CREAT)
    try:
        return run_command(
            [sys.executable, "-S", "-c", HOLD, str(size)],
            folder=tmp_path,
            environment={},
            log=tmp_path / "log",
            read=lambda line: None,
            lock=lock,
        )
    finally:
        os.close(lock)


def test_a_command_has_taken_at_least_what_it_held(tmp_path):
    small, large = measure(tmp_path, 1), measure(tmp_path, 65)
    # a Python alone takes less than 64 MiB, however large this process is
    assert 1 * MIB < small < 64 * MIB and large > 65 * MIB


def test_a_command_that_fails_is_still_noticed(tmp_path):
    with pytest.raises(CommandFailedError, match="exit status 1"):
        measure(tmp_path, "no number")


def test_the_largest_attempt_at_the_same_training_counts(tmp_path):
    stamps = Stamps(tmp_path)
    for key, memory in (("key", 7), ("key", 9), ("key", 8)):
        stamps.begin("train", key, ())
        stamps.measured("train", memory)
    assert (tmp_path / "train.memory").read_text() == "9\n"
    stamps.begin("train", "another", ())
    stamps.measured("train", 5)
    assert (tmp_path / "train.memory").read_text() == "5\n"
