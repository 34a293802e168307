"""How the gradient changes from layer to layer: Xiong et al. 2020, section 3.3, after Theorem 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.seeds import Sample, describe
from norm_plugin.analysis.theory.activations import mean_loss
from norm_plugin.analysis.theory.batches import Batches
from norm_plugin.analysis.theory.claim import Claim, Findings, Options, Row, Table, with_interval
from norm_plugin.analysis.theory.fits import contains, factor_below, rate
from norm_plugin.analysis.theory.gradients import layer_gradients
from norm_plugin.analysis.theory.last_layer import exponents
from norm_plugin.analysis.theory.models import full
from norm_plugin.analysis.theory.rows import group
from norm_plugin.analysis.theory.stack_pass import stack_pass
from norm_plugin.analysis.theory.sums import squared_lengths, watch_sums

SIMPLIFIED = "simplified"
PAPER = {"post": math.sqrt(2 / 3), "pre": 1.0}
"""What the gradient is multiplied by from one layer to the one below it, by placement."""
NEAR = 0.05
"""Measured factors that are further from the paper's are called different."""


def measure(options: Options, placement: str) -> list[Row]:
    """The gradient of W^2 of each layer, in the simplified stack and in both full stacks.

    And beside it, where it is known, E |x_l|^2 / d of the output of the layer, and E |x + f(x)|^2
    / d after its attention over the encoder.
    """
    rows: list[Row] = []
    for batches in options.batches_of(placement):
        for seed in options.seeds_of(placement):
            where = {"tokens": batches.kind, "placement": placement, "seed": seed}
            rows += [
                {
                    "stack": one.name,
                    **where,
                    "layer": layer,
                    "gradient": gradient,
                    "squared_length": length,
                    "cross_sum": cross,
                }
                for one in (
                    _simplified(options, batches, placement, seed),
                    *_full(options, batches, placement, seed),
                )
                for layer, (gradient, length, cross) in enumerate(
                    zip(one.gradients, one.lengths, one.crosses), start=1
                )
            ]
    return rows


class _Stack(NamedTuple):
    """What the columns of a row are, by layer."""

    name: str
    gradients: list[float]
    lengths: Sequence[float | None]
    crosses: Sequence[float | None]


def _simplified(options: Options, batches: Batches, placement: str, seed: int) -> _Stack:
    found = stack_pass(placement, options.norm_type, options.depth, options.dim, batches, seed)
    lengths = found.outputs[1:].mean(dim=1).tolist()
    return _Stack(SIMPLIFIED, found.gradients, lengths, [None] * options.depth)


def _full(options: Options, batches: Batches, placement: str, seed: int) -> list[_Stack]:
    torch.manual_seed(seed)
    model = full(placement, options.norm_type, options.depth, options.full_dim, batches)
    batch, pad = batches.draw(seed), batches.target_words.pad()
    watched = watch_sums(model.decoder)
    loss = mean_loss(model, batch, pad)
    w2s = [layer.fc2 for side in (model.encoder, model.decoder) for layer in side.layers]
    gradients = layer_gradients(w2s, loss)
    below, above = gradients[: options.depth], gradients[options.depth :]
    unknown: list[float | None] = [None] * options.depth
    crosses: Sequence[float | None] = unknown
    if len(watched.get("cross", [])) == options.depth:
        real = batch.target.ne(pad).t()
        lengths = squared_lengths(watched["cross"], real, options.full_dim)
        crosses = lengths.mean(dim=1).tolist()
    return [
        _Stack("encoder", below, unknown, unknown),
        _Stack("decoder", above, unknown, crosses),
    ]


def factor(rows: Sequence[Row]) -> Sample | None:
    """From a layer to the one below it, in rows of one stack and placement."""
    return factor_below(
        rate(
            {
                seed: [(row["layer"], row["gradient"]) for row in some]
                for (seed,), some in group(rows, "seed").items()
            }
        )
    )


def find(rows: list[Row]) -> Findings:
    """The factor of every stack and placement, and what the paper says of two of them."""
    sentences, tables = [], []
    for (tokens,), of_tokens in group(rows, "tokens").items():
        cells: dict[str, dict[str, str]] = {}
        stacks = group(of_tokens, "stack")
        for (stack,), of_stack in stacks.items():
            for (placement,), some in group(of_stack, "placement").items():
                if placement in PAPER:
                    where = f"{_name(stack).capitalize()}, {tokens} tokens, `{placement}`"
                    sentences.append(verdict(where, some))
                cells.setdefault(placement, {})[stack] = with_interval(factor(some))
        header = (f"factor a layer, {tokens} tokens", *(_name(stack) for (stack,) in stacks))
        lines = [
            (placement, *(found.get(stack, with_interval(None)) for (stack,) in stacks))
            for placement, found in cells.items()
        ]
        tables.append(Table(header, lines))
    return Findings(sentences, tables)


def _name(stack: str) -> str:
    return "simplified stack" if stack == SIMPLIFIED else f"{stack} of the full model"


def verdict(where: str, rows: Sequence[Row]) -> str:
    """Whether the factor is the paper's, and what else the measurements say of it."""
    found, stated = factor(rows), PAPER[rows[0]["placement"]]
    if found is None:
        return f"{where}: a gradient is 0, so there is no factor."
    held = contains(found, stated)
    said = f"{where}: from a layer to the one below it the gradient is multiplied by "
    said += f"{with_interval(found)}; the paper has {stated:.3f}. "
    said += f"It is {'within' if abs(found.mean - stated) <= NEAR else 'not within'} {NEAR} of it"
    if held is not None:
        said += f", and the interval {'contains' if held else 'does not contain'} it"
    crosses = [row["cross_sum"] for row in rows if row["cross_sum"] is not None]
    if crosses:
        growth = sum(crosses) / len(crosses)
        said += (
            f". The attention over the encoder lengthens the stream to |x|^2 = {growth:.2f} d, "
            f"which alone would be a factor of {growth**-0.5:.3f} a layer"
        )
    if all(row["squared_length"] is not None for row in rows):
        by_length = exponents(rows, "gradient", over="squared_length")
        if by_length is not None:
            said += f". In |x_l|^2 the gradient has an exponent of {with_interval(by_length)}"
    return said + "."


def plot(rows: list[Row], axes: Any) -> None:
    """The gradient over the layers as a share of the last, a line a stack, of post and pre."""
    shown = [row for row in rows if row["placement"] in PAPER] or rows
    shown = [row for row in shown if row["tokens"] == rows[0]["tokens"]]
    for place, ((placement, stack), some) in enumerate(group(shown, "placement", "stack").items()):
        means = [describe([r["gradient"] for r in at]).mean for at in group(some, "layer").values()]
        if means[-1] == 0:  # as under rezero, whose branches begin with a factor of 0
            continue
        layers, shares = range(1, len(means) + 1), [one / means[-1] for one in means]
        axes.plot(layers, shares, **style(place), label=f"{placement}, {_name(stack)}")
    depth = max(row["layer"] for row in rows)
    decay = [PAPER["post"] ** (depth - layer) for layer in range(1, depth + 1)]
    axes.plot(range(1, depth + 1), decay, color="#888888", linewidth=1, label="(2/3)^((L-l)/2)")
    axes.set_yscale("log")
    axes.set_xlabel("layer l")
    axes.set_ylabel("gradient of W^2 / that of layer L")
    axes.legend(loc="lower right", fontsize=7)


CLAIM = Claim(
    name="every-layer",
    title="The gradient of every layer",
    source="Xiong et al. 2020, section 3.3",
    statement=(
        "At a fixed number of layers L, the gradient of W^2 of layer l is about "
        "`(2/3)^((L-l)/2)` times that of the last layer under post-norm, a factor of "
        f"{PAPER['post']:.3f} a layer, and about the same in every layer under pre-norm.",
    ),
    method=(
        "Frobenius norm of the gradient of the mean loss of a batch. A line is fitted to its "
        "logarithm over the layers for each seed; the factor is that from a layer to the one below "
        "it, with its 95 % interval over seeds.",
        "What to expect: with random weights a branch lengthens the stream, on average, as much as "
        "its Jacobian lengthens the gradient on the way back. Under pre-norm the gradient of layer "
        "l is then proportional to `1 / |x_l|`, an exponent of -1/2 in `|x_l|^2`. Under post-norm "
        "the norm on the sum divides both by the same, and nothing is left. The exception is the "
        "attention over the encoder: its values do not come from the stream, so it lengthens the "
        "stream and hands almost no gradient back to it.",
    ),
    caption="Gradient of each layer's W^2, as a share of the last layer's. Gray: the paper, post.",
    measure=measure,
    find=find,
    plot=plot,
)
