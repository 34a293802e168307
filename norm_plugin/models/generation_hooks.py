"""``--fold-norms`` for fairseq-generate, -interactive, -validate and -eval-lm, and for the hub.

fairseq lets a plugin add flags to models and tasks, not to these commands, so two of its functions
are wrapped, which then do what they always did:

    options.parse_args_and_arch                      knows the flag, and hands it on as the model
                                                     override 'fold_norms'
    checkpoint_utils.load_model_ensemble_and_task    takes that override out, and folds the norms
                                                     of every model that it has loaded
"""

from __future__ import annotations

import argparse
import ast
import functools
import logging
from collections.abc import Sequence
from typing import Any

from fairseq import checkpoint_utils, options
from torch import nn

from norm_plugin.models.folding import fold_norms
from norm_plugin.models.translation import NormTransformerModel
from norm_plugin.models.wrapping import Function, wrap_once

logger = logging.getLogger(__name__)

OVERRIDE = "fold_norms"
HELP = "fold norms with running statistics into the linear maps after them, where that is possible"


def around_parse_args(parse_args: Function) -> Function:
    """Around ``options.parse_args_and_arch``."""

    @functools.wraps(parse_args)
    def wrapper(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        # the commands that load models to use them are those with --model-overrides
        evaluates = parser.get_default("model_overrides") is not None
        if evaluates and parser.get_default(OVERRIDE) is None:
            parser.add_argument("--fold-norms", action="store_true", help=HELP)
        parsed = parse_args(parser, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, OVERRIDE, False):
            given = ast.literal_eval(getattr(namespace, "model_overrides", "{}"))
            namespace.model_overrides = repr({**given, OVERRIDE: True})
        return parsed

    return wrapper


def around_load(load: Function) -> Function:
    """Around ``checkpoint_utils.load_model_ensemble_and_task``."""

    @functools.wraps(load)
    def wrapper(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        overrides = dict(arg_overrides or {})
        fold = overrides.pop(OVERRIDE, False)
        models, cfg, task = load(filenames, overrides if fold else arg_overrides, *args, **kwargs)
        if fold:
            for filename, model in zip(filenames, models):
                fold_and_log(filename, model)
        return models, cfg, task

    return wrapper


def fold_and_log(filename: str, model: nn.Module) -> None:
    """Fold the norms of a model that was loaded from ``filename``, and log what became of them."""
    if not isinstance(model, NormTransformerModel):
        logger.warning("%s: a %s has no norms to fold", filename, type(model).__name__)
        return
    foldings = fold_norms(model)
    for folding in foldings:
        logger.info("%s: %s", filename, folding)
    if all(folding.reason for folding in foldings):
        logger.warning("%s: no norm could be folded; it decodes as it is", filename)


def install() -> None:
    """Wrap fairseq's functions, once a process."""
    wrap_once(options, "parse_args_and_arch", around_parse_args)
    wrap_once(checkpoint_utils, "load_model_ensemble_and_task", around_load)
