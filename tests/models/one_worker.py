"""One of several workers of fairseq-train on the CPU: run as a script by test_two_workers.py.

It trains as its flags say and writes what its norms held before and after each averaging, and what
its trainer held after it had loaded a checkpoint. Its first two arguments are that file and the
number of the update before which it kills itself; 0 is none.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
from pathlib import Path

import torch
from fairseq.trainer import Trainer
from fairseq_cli import train

from norm_plugin.models import patches

RECORD, KILLED_BEFORE = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
seen, loaded = [], {}


def statistics(model):
    marks = ("norm", ".placement.")
    state = model.state_dict()  # writes the counts of updates into their buffers
    return {
        key: state[key].clone()
        for key, _ in model.named_buffers()
        if any(part in key for part in marks)
    }


def recording(model, average=patches.average_running_statistics):
    before = statistics(model)
    average(model)
    seen.append((before, statistics(model)))


def load(trainer, *args, load=Trainer.load_checkpoint, **kwargs):
    extra_state = load(trainer, *args, **kwargs)
    if extra_state is not None:
        loaded["model"] = copy.deepcopy(trainer.get_model().state_dict())
        loaded["last_optimizer_state"] = copy.deepcopy(trainer.optimizer.state_dict())
        loaded["num_updates"] = trainer.get_num_updates()
    return extra_state


def update(trainer, *args, update=Trainer.train_step, **kwargs):
    if trainer.get_num_updates() + 1 == KILLED_BEFORE:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(trainer, *args, **kwargs)


patches.average_running_statistics = recording
Trainer.load_checkpoint, Trainer.train_step = load, update
train.cli_main()
torch.save({"averaged": seen, "loaded": loaded}, RECORD)
