"""Test whether a norm mixes positions in training, since a class can forget to declare it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import NormSpec

_TRUE: set[tuple[Any, ...]] = set()
"""Classes and options that were tested and whose declaration is right."""


def mixes_positions(norm: Norm) -> bool:
    """Return whether changing one position changes the output of a training forward at others.

    The second of two forwards is compared too, because running statistics carry information from
    one batch to the next. ``norm``, its buffers and the random state are restored. Neither the
    default dtype nor the default device matters.
    """
    cpu = torch.device("cpu")
    generator = torch.Generator(cpu).manual_seed(0)
    x = torch.randn(4, 3, norm.dim, generator=generator, dtype=torch.float32, device=cpu)
    other = x.clone()
    other[1, 1] = 3 * x[1, 1] + 2
    with cpu:
        outputs = [_two_forwards(norm, batch) for batch in (x, other)]
    elsewhere = torch.ones(4, 3, dtype=torch.bool, device=cpu)
    elsewhere[1, 1] = False
    return any(
        not torch.allclose(y[elsewhere], y_of_other[elsewhere], rtol=1e-4, atol=1e-5)
        for y, y_of_other in zip(*outputs)
    )


def _two_forwards(norm: Norm, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of two forwards; the second input is the same in each call."""
    trial = copy.deepcopy(norm).float().cpu().train()
    trial.fused = None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first = trial(x)
        return first, trial(torch.ones_like(x).cumsum(dim=0))


def check_declaration(spec: NormSpec, norm: Norm, options: dict[str, Any]) -> None:
    """Raise ValueError if ``norm``, built with ``options``, mixes positions and does not say so.

    Undeclared, such a norm would be allowed in a decoder and let each position see its future. Each
    class is tested once per set of options.
    """
    key = (spec.cls, norm.dim, tuple(sorted(options.items())))
    on_meta = any(tensor.is_meta for tensor in (*norm.parameters(), *norm.buffers()))
    if spec.batch_statistics or key in _TRUE or on_meta:
        return
    if mixes_positions(norm):
        raise ValueError(
            f"norm {spec.name!r} ({spec.cls.__name__}) mixes positions in training: another value "
            "at one position changes its output at others, so in a decoder each would see its "
            "future. Declare batch_statistics = True in the class, or derive it from "
            "norm_plugin.norms.BatchStatisticsNorm; see docs/extending.md"
        )
    _TRUE.add(key)
