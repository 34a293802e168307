"""Counts of norms in models that average the weights of others.

``torch.optim.swa_utils.AveragedModel`` with ``use_buffers=True`` averages integers too, and cuts
off fractions: after 50 updates a count would be 1, and a warm-up would begin again. So what counts
is copied from the model after each average, as that class does with all buffers by default.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


@functools.cache
def keep_counts_of(cls: type[nn.Module]) -> None:
    """Let each AveragedModel copy the integer buffers of modules of ``cls``, from now on."""
    average = AveragedModel.update_parameters

    @functools.wraps(average)
    def update_parameters(averaged: AveragedModel, model: nn.Module) -> Any:
        result = average(averaged, model)
        pair = [
            [module for module in root.modules() if isinstance(module, cls)]
            for root in (averaged.module, model)
        ]
        with torch.no_grad():
            for target, source in zip(*pair):
                given = dict(source.named_buffers(recurse=False))
                for name, buffer in target.named_buffers(recurse=False):
                    if not buffer.is_floating_point() and name in given:
                        buffer.copy_(given[name])
        return result

    # mypy knows methods as constants
    setattr(AveragedModel, "update_parameters", update_parameters)  # noqa: B010
