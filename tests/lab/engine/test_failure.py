"""Why a stage failed, by the last lines of its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from norm_lab.engine.failure import explain
from norm_lab.engine.process import CommandFailedError
from norm_lab.engine.state import DIVERGED, FAILED


@pytest.mark.parametrize(
    ("line", "state", "reason"),
    [
        ("FloatingPointError: a NaN in encoder.layers.0", DIVERGED, "a NaN in encoder.layers.0"),
        ("train | epoch 001 | loss nan | num_updates 3", DIVERGED, "the loss is nan"),
        ("error: D-1 is nan; the weights have diverged", DIVERGED, "D-1 is nan; the weights have"),
        ("error: generate.log is truncated", FAILED, "generate.log is truncated"),
        ("RuntimeError: CUDA out of memory", FAILED, "RuntimeError: CUDA out of memory"),
        ("nothing special", FAILED, "exit status 1"),
    ],
)
def test_the_reason_is_found(line, state, reason):
    failed = CommandFailedError("exit status 1", ["begin", line, "end"])
    found = explain("train", failed, Path("train.log"))
    assert found.state == state and found.reason.startswith(reason)
