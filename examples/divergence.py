"""Diverged trainings: their scores say nothing about a norm, and must not be averaged."""

from __future__ import annotations

import math

from torch import nn


def check_finite(step: str, loss: float, model: nn.Module) -> None:
    """Raise ValueError if the loss of a step, or a weight after it, is NaN or infinite.

    Args:
        step: its name for the message, such as ``epoch 3``.
    """
    if not math.isfinite(loss):
        what = f"the loss of {step} is {loss}"
    elif not all(weights.isfinite().all() for weights in model.parameters()):
        what = f"after {step} the model has weights that are NaN or infinite"
    else:
        return
    raise ValueError(
        f"{what}: the training has diverged; lower LEARNING_RATE in the example, or choose "
        "another norm"
    )
