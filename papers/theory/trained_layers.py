"""The gradient of every layer after the warm-up.

Xiong et al. 2020, section 3.3, explain the need for a warm-up by the large gradients near the
output of post-norm at the start of training. Measured here are the gradients of the layers after
the warm-up of real runs. No verdict is given, because the start of these runs is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.io.command_line import CommandError
from papers.theory.claim import Options, Row, verdict
from papers.theory.every_layer import PAPER, factor
from papers.theory.models import batch_of, layer_gradients, translation_setting
from papers.theory.trained import read_trained

CASE = ("placement", "stack", "norm", "updates", "checkpoint")

STACK = ("placement", "norm", "updates", "stack")
"""The columns that identify a stack of a model, but for two models that are otherwise alike."""


def measure_once(options: Options) -> Iterator[Row]:
    """Measure the gradient of W^2 of each layer of each checkpoint, in its first batches."""
    for path in options.checkpoints:
        yield from measure_checkpoint(path, options.data)


def measure_checkpoint(path: Path, data: Path | None) -> Iterator[Row]:
    """Yield the rows of one checkpoint; it raises as :func:`read_trained`."""
    model, task, updates, batches = read_trained(path, data)
    if min(len(model.encoder.layers), len(model.decoder.layers)) < 2:
        raise CommandError(f"{path} has a stack of one layer; a factor per layer needs two")
    layers = [
        (side, number, layer)
        for side in ("encoder", "decoder")
        for number, layer in enumerate(getattr(model, side).layers, start=1)
    ]
    for seed, sample in enumerate(batches):
        setting = translation_setting(model, batch_of(sample), task.target_dictionary.pad())
        gradients = layer_gradients([layer for *_, layer in layers], setting.mean_loss())
        for (side, number, _), gradient in zip(layers, gradients):
            yield {
                "checkpoint": path.as_posix(),
                "placement": model.cfg.plan.placement[side],
                "norm": str(model.cfg.norm_type),
                "updates": updates,
                "stack": side,
                "seed": seed,
                "layer": number,
                "gradient": gradient,
            }


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Yield the factor of each stack of each checkpoint, with its file if rows look the same."""
    by = [*STACK, *(["checkpoint"] if "checkpoint" in frame else [])]  # which old files lack
    stacks: list[tuple[Any, pd.DataFrame]] = list(frame.groupby(by, sort=False))
    named = len({key[: len(STACK)] for key, _ in stacks}) < len(stacks)
    for key, some in stacks:
        row = {name: str(value) for name, value in zip(by if named else STACK, key)}
        stated = PAPER.get(row["placement"])
        measured = factor(some) or "undefined"
        row |= verdict("-" if stated is None else f"{stated:.3f}", measured, None)
        means = some.groupby("layer")["gradient"].mean()
        ratio = f"{means.iloc[0] / means.iloc[-1]:.3f}" if means.iloc[-1] else "undefined"
        yield {**row, "first layer / last layer": ratio}
