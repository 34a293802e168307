"""A plugin of pytest for fairseq's own tests: their architectures become ours.

With ``NORM_OWN`` in the environment, each architecture that has a counterpart gets norm_ in front
of its name and that norm. Without, the architectures stay. Tests of others, most of which train for
long, are skipped. fairseq is the installed one.
"""

from __future__ import annotations

import itertools
import os
import unittest
from pathlib import Path

import fairseq_cli.train  # noqa: F401  or else that of the checkout is found
from fairseq import options
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel

from norm_plugin.models import NormTransformerModel

PLUGIN = str(Path(__file__).resolve().parents[2] / "norm_plugin")
NORM = os.environ.get("NORM_OWN", "")
MODELS = {
    "transformer": {},
    "transformer_lm": {},
    "roberta": {},
    "transformer_xl": {"--n-layer": "--decoder-layers"},
}
"""fairseq's models whose architectures have counterparts, with our flags for each of their flags.
"""
parse = options.parse_args_and_arch


def command(argv, norm):
    """The command line with our architecture and a user dir; a test's own user dir is kept."""
    for place, (flag, name) in enumerate(itertools.pairwise(argv)):
        if flag not in ("--arch", "-a"):
            continue
        model = ARCH_MODEL_NAME_REGISTRY.get(name)
        if model not in MODELS or f"norm_{name}" not in ARCH_MODEL_REGISTRY:
            raise unittest.SkipTest(f"{name} has no counterpart")
        if not norm:
            return argv
        argv = [MODELS[model].get(word, word) for word in argv]
        argv[place + 1 : place + 2] = [f"norm_{name}", "--norm-type", norm]
        break
    return argv if "--user-dir" in argv or not norm else [*argv, "--user-dir", PLUGIN]


class WithNorm(NormTransformerModel):
    """In place of the ``TransformerModel`` that some tests build themselves."""

    @classmethod
    def build_model(cls, args, task):
        args.norm_type = NORM
        return NormTransformerModel.build_model(args, task)


def pytest_collection_modifyitems(items):
    """Replace the architectures; pytest calls it once the tests are imported."""
    options.parse_args_and_arch = lambda parser, input_args=None, *args, **kwargs: parse(
        parser, input_args and command(list(input_args), NORM), *args, **kwargs
    )
    for module in {item.module for item in items}:
        if NORM and getattr(module, "TransformerModel", None) is TransformerModel:
            module.TransformerModel = WithNorm
