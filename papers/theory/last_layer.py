"""The gradient of the last layer.

Xiong et al. 2020, Theorem 1. The Frobenius norm of the gradient of W^2, the second matrix of the
feed-forward network, in the last of L layers is `O(d sqrt(ln d))` under post-norm and
`O(d sqrt(ln d / L))` under pre-norm: an exponent of L of at most 0 and -1/2, since these are upper
bounds.

The gradient of the loss of position i by the last W^2 is an outer product, `delta_i h_i^T`: h_i
goes into W^2, and delta_i is the gradient of that loss by what comes out, since no later part of
the model mixes positions if its norms do not. So the norm of the gradient of one position's loss,
mean over positions, is `mean_i |delta_i| |h_i|`, and the norm of the mean gradient is
`|mean_i delta_i h_i^T|`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from norm_lab.study.significance import Sample
from papers.theory.claim import (
    Options,
    Row,
    cases,
    draw_lines,
    exponent,
    like_first,
    near_verdict,
    with_interval,
)
from papers.theory.models import Setting, full, simplified

CASE = ("placement", "model", "tokens")
CAPTION = "Gradient of the last layer's W^2 in the simplified setting, mean over positions."

SIMPLIFIED, FULL = "simplified", "full"
THEOREM = {"post": 0.0, "pre": -0.5}
"""The exponent of L in the upper bound, by placement."""
NEAR = 0.1
"""The tolerance: measured exponents that are larger by more than this exceed the bound."""
NORMS = {"of_positions": "mean of positions", "of_mean": "of the mean"}
"""The two norms of the gradient."""
GROWS = 1.5
"""Lengths of hidden states that differ by less than this factor have no exponent."""


class LastLayer(NamedTuple):
    """Two norms of the gradient of the last W^2, and |x_L|^2 / d as a mean over real positions."""

    of_positions: float
    of_mean: float
    squared_length: float


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure :class:`LastLayer` at each number of layers, in the simplified and the full model."""
    for name, build, dim, batches in (
        (SIMPLIFIED, simplified, options.dim, options.random),
        *((FULL, full, options.full_dim, batches) for batches in options.batches_of(placement)),
    ):
        for layers in options.layers:
            for seed in options.seeds_of(placement):
                setting = build(placement, layers, dim, batches, seed)
                last = last_layer(setting)
                where = {"model": name, "tokens": batches.kind, "placement": placement}
                yield {**where, "layers": layers, "seed": seed, **last._asdict()}


def last_layer(setting: Setting) -> LastLayer:
    """Measure the last layer in one pass; after its W^2, no module may mix positions."""
    layer, recorded = setting.layers[-1], dict[str, Tensor]()

    def begin_graph(w2: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        recorded["h"], recorded["output"] = inputs[0].detach(), output.detach().requires_grad_()
        return recorded["output"]

    def record_output(layer: nn.Module, inputs: Any, output: Any) -> None:
        recorded["x"] = (output[0] if isinstance(output, tuple) else output).detach()

    setting.model.requires_grad_(False)  # the graph begins at W^2, so the pass is short
    layer.fc2.register_forward_hook(begin_graph)
    layer.register_forward_hook(record_output)
    loss = setting.total_loss(setting.run()[0])
    (delta,) = torch.autograd.grad(loss, recorded["output"])
    delta, h = delta.flatten(0, 1), recorded["h"].flatten(0, 1)
    count = setting.labels.ne(setting.pad).sum()
    norms = torch.linalg.vector_norm(delta, dim=-1) * torch.linalg.vector_norm(h, dim=-1)
    mean = torch.linalg.matrix_norm(delta.t() @ h / count)
    squared_length = recorded["x"][..., : setting.dim][setting.real].square().mean()
    return LastLayer(float(norms.sum() / count), float(mean), float(squared_length))


def exponent_of(frame: pd.DataFrame, of: str, over: str = "layers") -> Sample | None:
    """Return p of ``of`` ~ ``over``^p in one model and placement, or None if undefined."""
    values = frame[over]
    if over == "squared_length" and values.max() < GROWS * values.min():
        return None
    return exponent(frame, of, over)


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether the exponents of both norms are at most the theorem's."""
    stated = frame[frame["placement"].isin(THEOREM)]
    for row, some in cases(stated, "model", "tokens", "placement"):
        for of, name in NORMS.items():
            bound, measured = THEOREM[row["placement"]], exponent_of(some, of)
            yield {**row, "exponent": name, **near_verdict(bound, measured, NEAR, at_most=True)}


def tables(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the exponents of every placement, and why they differ from the theorem's."""
    for (model, tokens), of_model in frame.groupby(["model", "tokens"], sort=False):
        rows = []
        for placement, some in of_model.groupby("placement", sort=False):
            lengths = some["squared_length"]
            by_length = exponent_of(some, "of_positions", over="squared_length")
            rows.append(
                {
                    f"{model} model, {tokens} tokens": placement,
                    **{
                        f"exponent, {name}": with_interval(exponent_of(some, of))
                        for of, name in NORMS.items()
                    },
                    "|x_L|^2 / d": f"{lengths.min():.2f} to {lengths.max():.2f}",
                    "exponent of |x_L|^2": with_interval(exponent_of(some, "squared_length")),
                    "exponent in |x_L|^2": with_interval(by_length),
                }
            )
        yield pd.DataFrame(rows)


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """Draw the gradient over L in the simplified setting, one line per placement, as seed means."""
    shown = like_first(frame, "model", "tokens")
    norm = "of_mean" if pd.isna(shown["of_positions"].iloc[0]) else "of_positions"
    # a gradient is 0 under rezero, whose branches start with a factor of 0
    lines = [
        (placement, some.groupby("layers")[norm].agg(lambda v: v.mean() if v.all() else None))
        for placement, some in shown.groupby("placement", sort=False)
    ]
    lines = [(placement, means.dropna()) for placement, means in lines]
    draw_lines(axes, lines, xlabel="layers L", ylabel="gradient of the last W^2", yscale="log")
    axes.set_xscale("log", base=2)
    if axes.lines:
        axes.legend(loc="lower left", fontsize=7, ncols=2, handlelength=3)
