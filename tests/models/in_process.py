"""fairseq's training loop in this process, on a model small enough for every norm in turn."""

from __future__ import annotations

import os

import fairseq_cli.train
import torch
from composed import train_by_fairseq
from fairseq.trainer import Trainer

from commands import SMALL
from norm_plugin.norms import NORM_TYPES, norm_spec

WITH_STATISTICS = [name for name in NORM_TYPES if norm_spec(name).batch_statistics]
DISTINCT = [*WITH_STATISTICS, next(name for name in NORM_TYPES if name not in WITH_STATISTICS)]
"""What a model must keep apart: a norm without state represents all of them."""

NARROW = tuple(
    word
    for side in ("encoder", "decoder")
    for word in (f"--{side}-embed-dim", 16, f"--{side}-ffn-embed-dim", 32)
)


def everywhere(name, warmup=4):
    """The flags that put ``name`` at every site of a pre-norm model."""
    flags = ("--norm-type", name, "--norm-type-decoder", name, "--norm-placement", "pre")
    if norm_spec(name).has_option("warmup_updates"):
        flags += ("--norm-warmup-updates", warmup)
    return flags


CPU = ("--cpu",) if os.environ.get("NORM_TEST_DEVICE", "cpu") == "cpu" else ()


class SquaredSum(torch.nn.Module):
    """A criterion without weights."""

    def forward(self, model, sample):
        return model(**sample)[0].square().sum(), 1, {}


def command(data, save_dir, *flags):
    """The command line of fairseq-train."""
    small = [word for pair in SMALL.items() for word in pair]
    argv = [data, *CPU, "--arch", "norm_transformer_multi30k_tiny", *small, *NARROW]
    argv += ["--encoder-attention-heads", 2, "--decoder-attention-heads", 2]
    argv += ["--save-dir", save_dir, *flags]
    return argv


def train_here(monkeypatch, data, save_dir, *flags, prepare=None):
    """Run fairseq-train; returns its trainer. ``prepare`` is called with the model first."""
    seen = []

    class Watched(Trainer):
        def __init__(self, cfg, task, model, criterion, *args):
            if prepare is not None:
                prepare(model)
            super().__init__(cfg, task, model, criterion, *args)
            seen.append(self)

    monkeypatch.setattr(fairseq_cli.train, "Trainer", Watched)
    train_by_fairseq(*command(data, save_dir, *flags))
    return seen[0]
