"""Squared lengths of what the norms on the sums of a stack get."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from norm_plugin.models.sites import branch_sites
from norm_plugin.placements import SUM


def watch_sums(stack: Any) -> dict[str, list[Tensor]]:
    """Collect, in the next forward, what the norm on the sum of each branch gets, by branch.

    A list has an entry for each layer that has such a norm.
    """
    watched: dict[str, list[Tensor]] = {}
    for layer in stack.layers.children():
        place = layer.placement.place
        for branch in place.branches:
            site = branch_sites(place.side, branch, (SUM,))[SUM]
            if layer.positions.get(site.attribute) == SUM:
                seen = watched.setdefault(branch, [])
                norm = getattr(layer, site.attribute)
                norm.register_forward_pre_hook(partial(_keep, seen), prepend=True)
    return watched


def _keep(seen: list[Tensor], norm: nn.Module, inputs: tuple[Any, ...]) -> None:
    """The hook before a norm."""
    seen.append(inputs[0].detach())


def squared_lengths(xs: list[Tensor], real: Tensor, dim: int) -> Tensor:
    """|x|^2 / d at the n real positions, (len(xs), n).

    A layer may give more than its output, which comes first. xs: (T, B, C or more); real: (T, B).
    """
    return torch.stack([x.detach()[..., :dim][real].square().mean(dim=-1) for x in xs])
