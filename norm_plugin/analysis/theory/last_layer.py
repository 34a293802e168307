"""The gradient of the last layer.

**Claim** (Xiong et al. 2020, Theorem 1). The Frobenius norm of the gradient of W^2, the second
matrix of the feed-forward network, in the last of L layers is `O(d sqrt(ln d))` under post-norm and
`O(d sqrt(ln d / L))` under pre-norm: an exponent of L of 0 and of -1/2.

**Method.** A line is fitted to the logarithms over L for each seed; the exponent is the mean of the
slopes, with its 95 % interval over seeds. The interval says how well the slope over these L is
known, not whether the gradient follows a power law. There are two norms of the gradient: the mean
over the positions of a batch of the norm of the gradient of one position's loss, and the norm of
the mean gradient of the batch. Where the hidden state x_L of the last layer grows, a table also has
the exponent of its squared length in L, and that of the gradient in its squared length. A statement
holds if the exponent is within its tolerance.

The gradient of the loss of position i by the last W^2 is an outer product, `delta_i h_i^T`: h_i
goes into W^2, and delta_i is the gradient of that loss by what comes out, since no later part of
the model mixes positions if its norms do not. So the two norms are `mean_i |delta_i| |h_i|` and
`|mean_i delta_i h_i^T|`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.stats import Sample
from norm_plugin.analysis.theory import stacks
from norm_plugin.analysis.theory.claim import (
    Claim,
    Options,
    Row,
    exponent,
    groups,
    like_first,
    near_verdict,
    with_interval,
)
from norm_plugin.analysis.theory.stacks import Batches
from norm_plugin.norms import norm_spec

SIMPLIFIED, FULL = "simplified", "full"
THEOREM = {"post": 0.0, "pre": -0.5}
"""The exponent of L, by placement."""
NEAR = 0.1
"""Measured exponents that are further from the theorem's are called different."""
NORMS = {"of_positions": "mean of positions", "of_mean": "of the mean"}
"""The two norms of the gradient."""
GROWS = 1.5
"""Lengths of hidden states that differ by less than this factor have no exponent."""


class LastLayer(NamedTuple):
    """Two norms of the gradient of the last W^2, and |x_L|^2 / d, the mean over real positions."""

    of_positions: float
    of_mean: float
    squared_length: float


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Two norms of the gradient at each number of layers, in both models."""
    mixes = norm_spec(options.norm_type).batch_statistics  # the decoder keeps LayerNorm then
    for model, batches in (
        (SIMPLIFIED, options.random),
        *((FULL, batches) for batches in options.batches_of(placement)),
    ):
        run = of_simplified if model == SIMPLIFIED else of_full
        for layers in options.layers:
            for seed in options.seeds_of(placement):
                found = run(options, placement, layers, batches, seed)._asdict()
                if mixes and model == SIMPLIFIED:
                    found["of_positions"] = None
                where = {"model": model, "tokens": batches.kind, "placement": placement}
                yield {**where, "layers": layers, "seed": seed, **found}


def of_simplified(
    options: Options, placement: str, layers: int, batches: Batches, seed: int
) -> LastLayer:
    """Of the simplified setting."""
    setting = stacks.simplified(placement, options.norm_type, layers, options.dim, batches, seed)
    stack, labels, pad = setting.stack, setting.labels, batches.source_words.pad()
    stack.requires_grad_(False)  # the graph begins at W^2, so the pass is a short one
    view = LastLayerView(stack.layers[-1], labels.ne(pad), options.dim)
    return view.measure(lambda: setting.logits(stack(setting.tokens)), labels, pad)


def of_full(
    options: Options, placement: str, layers: int, batches: Batches, seed: int
) -> LastLayer:
    """Of the decoder of a full model."""
    size = (layers, options.full_dim)
    model: Any = stacks.full(placement, options.norm_type, *size, batches, seed)
    model.requires_grad_(False)
    batch, pad = batches.draw(seed), batches.target_words.pad()
    view = LastLayerView(model.decoder.layers[-1], batch.target.ne(pad).t(), options.full_dim)
    return view.measure(lambda: model(batch.source, None, batch.previous)[0], batch.target, pad)


class LastLayerView:
    """Hooks of the last layer, which begin the graph at the output of W^2 and see h and x_L.

    Args:
        layer: the last one; after its W^2, no module may mix positions.
        real: positions of x_L, (T, B).
        dim: of x_L; a layer may give more than its output, which comes first.
    """

    def __init__(self, layer: Any, real: Tensor, dim: int) -> None:
        self.real, self.dim = real, dim
        layer.fc2.register_forward_hook(self._cut)
        layer.register_forward_hook(self._see)

    def _cut(self, w2: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.h = inputs[0].detach()
        self.output = output.detach().requires_grad_()
        return self.output

    def _see(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        x = output[0] if isinstance(output, tuple) else output
        self.squared_length = float(x.detach()[..., : self.dim][self.real].square().mean())

    def measure(self, logits: Callable[[], Tensor], labels: Tensor, pad: int) -> LastLayer:
        """The norms of the gradient in one pass.

        Args:
            logits: runs the model; (T, B, V) or (B, T, V).
            labels: as the logits without their last dimension; ``pad`` where there is no loss.
        """
        (delta,) = torch.autograd.grad(stacks.total_loss(logits(), labels, pad), self.output)
        delta, h = delta.flatten(0, 1), self.h.flatten(0, 1)
        count = labels.ne(pad).sum()
        norms = torch.linalg.vector_norm(delta, dim=-1) * torch.linalg.vector_norm(h, dim=-1)
        mean = torch.linalg.matrix_norm(delta.t() @ h / count)
        return LastLayer(float(norms.sum() / count), float(mean), self.squared_length)


def exponent_of(frame: pd.DataFrame, of: str, over: str = "layers") -> Sample | None:
    """p of ``of`` ~ ``over``^p in one model and placement; None where it has none."""
    values = frame[over]
    if over == "squared_length" and values.max() < GROWS * values.min():
        return None
    return exponent(frame, of, over)


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """The exponents of both norms beside the theorem's."""
    for (model, tokens, placement), some in groups(frame, "model", "tokens", "placement"):
        if placement in THEOREM:
            for of, name in NORMS.items():
                yield {
                    "model": model,
                    "tokens": tokens,
                    "placement": placement,
                    "exponent": name,
                    **near_verdict(THEOREM[placement], exponent_of(some, of), NEAR),
                }


def tables(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The exponents of every placement, and why they differ from the theorem's."""
    for (model, tokens), of_model in groups(frame, "model", "tokens"):
        rows = []
        for placement, some in groups(of_model, "placement"):
            lengths = some["squared_length"]
            row = {f"{model} model, {tokens} tokens": placement}
            for of, name in NORMS.items():
                row[f"exponent, {name}"] = with_interval(exponent_of(some, of))
            rows.append(
                {
                    **row,
                    "|x_L|^2 / d": f"{lengths.min():.2f} to {lengths.max():.2f}",
                    "exponent of |x_L|^2": with_interval(exponent_of(some, "squared_length")),
                    "exponent in |x_L|^2": with_interval(
                        exponent_of(some, "of_positions", over="squared_length")
                    ),
                }
            )
        yield pd.DataFrame(rows)


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """The simplified setting: gradient over L, a line a placement; means over seeds."""
    first = frame.iloc[0]
    shown = like_first(frame, "model", "tokens")
    norm = "of_mean" if pd.isna(first["of_positions"]) else "of_positions"
    for place, (placement, some) in enumerate(groups(shown, "placement")):
        # under rezero, whose branches begin with a factor of 0, a gradient is 0
        means = some.groupby("layers")[norm].agg(
            lambda values: values.mean() if values.all() else None
        )
        means = means.dropna()
        if len(means):
            axes.plot(means.index, means, **style(place), label=placement)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("layers L")
    axes.set_ylabel("gradient of the last W^2")
    if axes.lines:
        axes.legend(loc="lower left", fontsize=7, ncols=2, handlelength=3)


CLAIM = Claim(
    name="last-layer",
    place=2,
    text=__doc__,
    caption="Gradient of the last layer's W^2 in the simplified setting, mean over positions.",
    case=("placement", "model", "tokens"),
    may_lack=("of_positions",),
    measure=measure,
    verdicts=verdicts,
    tables=tables,
    plot=plot,
)
