"""The gradient of every layer.

**Claim** (Xiong et al. 2020, section 3.3 and the supplement). At a fixed number of layers L, the
gradient of W^2 of layer l has a term of about `(2/3)^((L-l)/2)` times that of the last layer under
post-norm, a factor of 0.816 a layer, and is about the same in every layer under pre-norm.

**Method.** Frobenius norm of the gradient of the mean loss of a batch. A line is fitted to its
logarithm over the layers for each seed; the factor is that from a layer to the one below it, with
its 95 % interval over seeds. A statement holds if the factor is within its tolerance.

What to expect: with random weights a branch lengthens the stream, on average, as much as its
Jacobian lengthens the gradient on the way back. Under pre-norm the gradient of layer l is then
proportional to `1 / |x_l|`, an exponent of -1/2 in `|x_l|^2`. Under post-norm the norm on the sum
divides both by the same, and nothing is left. The exception is the attention over the encoder: its
values do not come from the stream, so it lengthens the stream, to `|x|^2 = a d`, and hands almost
no gradient back to it. That alone would be a factor of `a^(-1/2)` a layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.stats import Sample
from norm_plugin.analysis.theory.claim import (
    Claim,
    Options,
    Row,
    factor_below,
    groups,
    near_verdict,
    rate,
    with_interval,
)
from norm_plugin.analysis.theory.last_layer import exponent_of
from norm_plugin.analysis.theory.stacks import (
    Batches,
    full,
    layer_gradients,
    mean_loss,
    squared_lengths,
    stack_pass,
    watch_sums,
)

SIMPLIFIED = "simplified"
PAPER = {"post": math.sqrt(2 / 3), "pre": 1.0}
"""What the gradient is multiplied by from one layer to the one below it, by placement."""
NEAR = 0.05
"""Measured factors that are further from the paper's are called different."""


class Stack(NamedTuple):
    """What the columns of a row are, by layer; None where it is not known.

    Attributes:
        lengths: E |x_l|^2 / d of the output of the layer.
        crosses: E |x + f(x)|^2 / d after its attention over the encoder.
    """

    name: str
    gradients: Sequence[float]
    lengths: Sequence[float | None]
    crosses: Sequence[float | None]


def measure(options: Options, placement: str) -> Iterator[Row]:
    """The gradient of W^2 of each layer, in the simplified setting and in both full stacks."""
    for batches in options.batches_of(placement):
        for seed in options.seeds_of(placement):
            for stack in (
                of_simplified(options, batches, placement, seed),
                *of_full(options, batches, placement, seed),
            ):
                columns = zip(stack.gradients, stack.lengths, stack.crosses)
                for layer, (gradient, length, cross) in enumerate(columns, start=1):
                    yield {
                        "stack": stack.name,
                        "tokens": batches.kind,
                        "placement": placement,
                        "seed": seed,
                        "layer": layer,
                        "gradient": gradient,
                        "squared_length": length,
                        "cross_sum": cross,
                    }


def of_simplified(options: Options, batches: Batches, placement: str, seed: int) -> Stack:
    """The stack of the simplified setting."""
    found = stack_pass(placement, options.norm_type, options.depth, options.dim, batches, seed)
    lengths = found.outputs[1:].mean(dim=1).tolist()
    return Stack(SIMPLIFIED, found.gradients, lengths, [None] * options.depth)


def of_full(options: Options, batches: Batches, placement: str, seed: int) -> list[Stack]:
    """The encoder and the decoder of the full model."""
    depth, dim = options.depth, options.full_dim
    model: Any = full(placement, options.norm_type, depth, dim, batches, seed)
    batch, pad = batches.draw(seed), batches.target_words.pad()
    watched = watch_sums(model.decoder)
    loss = mean_loss(model, batch, pad)
    gradients = layer_gradients([*model.encoder.layers, *model.decoder.layers], loss)
    unknown: list[float | None] = [None] * depth
    crosses: Sequence[float | None] = unknown
    if len(watched.get("cross", [])) == depth:
        lengths = squared_lengths(watched["cross"], batch.target.ne(pad).t(), dim)
        crosses = lengths.mean(dim=1).tolist()
    return [
        Stack("encoder", gradients[:depth], unknown, unknown),
        Stack("decoder", gradients[depth:], unknown, crosses),
    ]


def factor(frame: pd.DataFrame) -> Sample | None:
    """From a layer to the one below it, in one stack and placement."""
    return factor_below(rate(frame, "gradient", over="layer"))


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """The factors of post and pre beside the paper's, and why they differ."""
    for (tokens, stack, placement), some in groups(frame, "tokens", "stack", "placement"):
        if placement not in PAPER:
            continue
        row = {"tokens": tokens, "stack": name_of(stack), "placement": placement}
        row |= near_verdict(PAPER[placement], factor(some), NEAR)
        growth = some["cross_sum"].mean()
        if not math.isnan(growth):
            row |= {"a": f"{growth:.2f}", "a^(-1/2)": f"{growth**-0.5:.3f}"}
        if some["squared_length"].notna().all():
            by_length = exponent_of(some, "gradient", over="squared_length")
            row |= {"exponent in |x_l|^2": with_interval(by_length)} if by_length else {}
        yield row


def tables(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The factor of every stack and placement."""
    for tokens, of_tokens in groups(frame, "tokens"):
        yield pd.DataFrame(
            {
                f"factor a layer, {tokens} tokens": placement,
                **{
                    name_of(stack): with_interval(
                        factor(of_placement[of_placement["stack"] == stack])
                    )
                    for stack in of_tokens["stack"].unique()
                },
            }
            for placement, of_placement in groups(of_tokens, "placement")
        )


def name_of(stack: str) -> str:
    """Of a stack, on the page."""
    return "simplified stack" if stack == SIMPLIFIED else f"{stack} of the full model"


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """The gradient over the layers as a share of the last, a line a stack, of post and pre."""
    shown = frame[frame["placement"].isin(PAPER)]
    shown = shown if len(shown) else frame
    shown = shown[shown["tokens"] == frame["tokens"].iloc[0]]
    for place, ((placement, stack), some) in enumerate(groups(shown, "placement", "stack")):
        means = some.groupby("layer")["gradient"].mean()
        if means.iloc[-1] > 0:  # under rezero, whose branches begin with a factor of 0, it is 0
            label = f"{placement}, {name_of(stack)}"
            axes.plot(means.index, means / means.iloc[-1], **style(place), label=label)
    depth = frame["layer"].max()
    decay = [PAPER["post"] ** (depth - layer) for layer in range(1, depth + 1)]
    axes.plot(range(1, depth + 1), decay, color="#888888", linewidth=1, label="(2/3)^((L-l)/2)")
    axes.set_yscale("log")
    axes.set_xlabel("layer l")
    axes.set_ylabel("gradient of W^2 / that of layer L")
    axes.legend(loc="lower right", fontsize=7)


CLAIM = Claim(
    name="every-layer",
    place=3,
    text=__doc__,
    caption="Gradient of each layer's W^2, as a share of the last layer's. Gray: the paper, post.",
    case=("placement", "stack", "tokens"),
    may_lack=("squared_length", "cross_sum"),
    measure=measure,
    verdicts=verdicts,
    tables=tables,
    plot=plot,
)
