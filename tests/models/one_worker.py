"""One of several workers of fairseq-train on the CPU: run as a script by test_two_workers.py.

It trains as its flags say and writes what its norms held before and after each averaging.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from fairseq_cli import train

from norm_plugin.models import patches

RECORD = Path(sys.argv.pop(1))
seen = []


def statistics(model):
    kept = ("norm", ".placement.")
    return {
        key: value.clone()
        for key, value in model.named_buffers()
        if any(part in key for part in kept)
    }


def recording(model, average=patches.average_running_statistics):
    before = statistics(model)
    average(model)
    seen.append((before, statistics(model)))


patches.average_running_statistics = recording
train.cli_main()
torch.save(seen, RECORD)
