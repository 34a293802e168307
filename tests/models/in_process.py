"""fairseq's training loop in this process, on a model small enough for every norm in turn."""

from __future__ import annotations

import copy
import os

import fairseq_cli.train
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from commands import SMALL
from norm_plugin.norms import norm_spec

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


PLACES = {
    **dict.fromkeys(("save_dir", "restore_file", "finetune_from_model"), "checkpoint"),
    "data": "task",
}
"""What differs from run to run in the settings that are not the model's, and their group."""
CPU = ("--cpu",) if os.environ.get("NORM_TEST_DEVICE", "cpu") == "cpu" else ()
_composed = {}


def configure(data, save_dir, *flags):
    """The configuration of fairseq-train for these flags.

    hydra takes most of a second to compose what only differs in places and in the model's own
    flags, which it does not look at, so that is done once.
    """
    small = [word for pair in SMALL.items() for word in pair]
    words = [data, *CPU, "--arch", "norm_transformer_multi30k_tiny", *small, *NARROW]
    words += ["--encoder-attention-heads", 2, "--decoder-attention-heads", 2]
    words += ["--save-dir", save_dir, *flags]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(word) for word in words])
    others = {
        name: value
        for name, value in vars(args).items()
        if name not in PLACES and not name.startswith("norm_")
    }
    key = repr(sorted(others.items()))
    if key not in _composed:
        _composed[key] = convert_namespace_to_omegaconf(args)
    cfg = copy.deepcopy(_composed[key])
    for name, group in PLACES.items():
        cfg[group][name] = getattr(args, name)
    vars(cfg.model).clear()
    vars(cfg.model).update(vars(args), _name=args.arch)
    return cfg


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
    monkeypatch.delattr(checkpoint_utils.save_checkpoint, "best", raising=False)
    fairseq_cli.train.main(configure(data, save_dir, *flags))
    return seen[0]
