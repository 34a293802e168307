"""fairseq-train in this process; its configuration is composed once for all that differ little."""

from __future__ import annotations

import argparse
import copy
import dataclasses
from typing import Any

import fairseq_cli.train
from fairseq import checkpoint_utils, options
from fairseq.dataclass.configs import CheckpointConfig, EMAConfig, OptimizationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig

OF_THE_MODEL = ("norm_", "encoder_", "decoder_", "dropout", "checkpoint_activations")
TAKEN_OVER = {
    "data",
    *(
        field.name
        for group in (CheckpointConfig, EMAConfig, OptimizationConfig)
        for field in dataclasses.fields(group)
    ),
} - {"lr"}
"""Settings that occur in the configuration by their own names only: no other refers to them."""
_composed: dict[str, Any] = {}


def composed(args: argparse.Namespace) -> Any:
    """Return the result of ``convert_namespace_to_omegaconf(args)``.

    hydra takes half a second for it. It does not look at what is of the model alone, if that has no
    dataclass. So this, and what no other setting refers to, is put into a copy of what was composed
    before.
    """
    values = dict(vars(args))
    if values["arch"] in MODEL_DATACLASS_REGISTRY:
        return convert_namespace_to_omegaconf(args)
    taken_over = {name: value for name, value in values.items() if name in TAKEN_OVER}
    others = {
        name: value
        for name, value in values.items()
        if name not in TAKEN_OVER and not name.startswith(OF_THE_MODEL)
    }
    key = repr(sorted(others.items()))
    if key not in _composed:
        _composed[key] = convert_namespace_to_omegaconf(args), taken_over
    cfg, before = copy.deepcopy(_composed[key])
    for name, value in taken_over.items():
        if value != before[name]:
            for group in cfg.values():
                if isinstance(group, DictConfig) and name in group:
                    group[name] = value
    vars(cfg.model).clear()
    vars(cfg.model).update(values, _name=args.arch)
    return cfg


def configure(*argv: object) -> Any:
    """The configuration of fairseq-train for these words of its command line."""
    words = [str(word) for word in argv]
    return composed(options.parse_args_and_arch(options.get_training_parser(), words))


def train_by_fairseq(*argv: object) -> None:
    """Run fairseq-train, as in a process of its own."""
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # of a training before
    fairseq_cli.train.main(configure(*argv))
