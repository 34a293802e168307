"""The gradient of every layer.

Xiong et al. 2020, section 3.3, Figure 3 and supplement 6. At a fixed number of layers L, the
estimate of the gradient of W^2 of layer l has a term of `O((2/3)^((L-l)/2))` under post-norm. Under
pre-norm, the gradient does not depend on the layer if l is large.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from norm_lab.study.significance import Sample
from papers.theory.claim import (
    GRAY,
    INTERVAL,
    Options,
    Row,
    cases,
    draw_lines,
    factor_below,
    interval_text,
    near_verdict,
    rate,
    verdict,
    with_interval,
)
from papers.theory.last_layer import exponent_of
from papers.theory.models import full, layer_gradients, record_sums

CASE = ("placement", "stack", "tokens")
MAY_LACK = ("squared_length", "cross_sum")
CAPTION = "Gradient of each layer's W^2, as a share of the last layer's. Gray: the paper, post."

STACKS = {
    "simplified": "simplified stack",
    "encoder": "encoder of the full model",
    "decoder": "decoder of the full model",
}
"""The title of each stack on the page, by its name in the table of measurements."""
PAPER = {"post": math.sqrt(2 / 3), "pre": 1.0}
"""The factor of the gradient from one layer to the one below it, by placement: an upper bound under
post-norm."""
NEAR = 0.05
"""The tolerance of the factors: measured ones that differ more from the paper's are different."""


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Yield the gradient of W^2 of each layer, in the simplified setting and in both full stacks.

    ``squared_length`` is E |x_l|^2 / d of the output of the layer, and ``cross_sum`` is
    E |x + f(x)|^2 / d after its attention over the encoder; NaN if unknown.
    """
    unknown, depth = [math.nan] * options.depth, options.depth
    for where, batches, seed in options.draws(placement):
        stack = options.stack_pass(placement, batches, seed)
        lengths = stack.outputs[1:].mean(dim=1).tolist()
        setting = full(placement, depth, options.full_dim, batches, seed)
        sums = record_sums(setting.layers)
        gradients = layer_gradients(
            [*setting.model.encoder.layers, *setting.layers], setting.mean_loss()
        )
        crosses = sums.get("cross", [])
        if len(crosses) == depth:  # every layer has a norm on that sum
            cross_sums = setting.squared_lengths(crosses).mean(dim=1).tolist()
        else:
            cross_sums = unknown
        for name, *columns in (
            ("simplified", stack.gradients, lengths, unknown),
            ("encoder", gradients[:depth], unknown, unknown),
            ("decoder", gradients[depth:], unknown, cross_sums),
        ):
            for layer, (gradient, length, cross) in enumerate(zip(*columns), start=1):
                row = {"stack": name, **where, "layer": layer, "gradient": gradient}
                yield {**row, "squared_length": length, "cross_sum": cross}


def factor(frame: pd.DataFrame) -> Sample | None:
    """Return the factor from a layer to the one below it, in one stack and placement."""
    return factor_below(rate(frame, "gradient", over="layer"))


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge the factors of post and pre by the paper's, and show why they differ."""
    shown = frame[frame["placement"].isin(PAPER)]
    for row, some in cases(shown, "tokens", "stack", "placement"):
        post, theory = row["placement"] == "post", row["stack"] == "simplified"
        row["stack"] = STACKS[row["stack"]]
        if theory and not post:
            row |= judge_upper_layers(some)
        else:
            row |= near_verdict(PAPER[row["placement"]], factor(some), NEAR, at_most=post)
        growth = some["cross_sum"].mean()
        if not math.isnan(growth):
            row |= {"a": f"{growth:.2f}", "a^(-1/2)": f"{growth**-0.5:.3f}"}
        if some["squared_length"].notna().all():
            by_length = exponent_of(some, "gradient", over="squared_length")
            row |= {"exponent in |x_l|^2": with_interval(by_length)} if by_length else {}
        yield row


def judge_upper_layers(frame: pd.DataFrame) -> Row:
    """Judge whether the factor of the upper layers is decidedly below that of the lower half."""
    layers = int(frame["layer"].max())
    first, half = 2 * layers // 3 + 1, layers // 2
    upper, lower = factor(frame[frame["layer"] >= first]), factor(frame[frame["layer"] <= half])
    stated = f"nearer to 1 in layers {first} to {layers} than in 1 to {half}"
    if upper is None or lower is None:
        return verdict(stated, "undefined", None)
    measured = f"{upper.mean:.3f} against {lower.mean:.3f}"
    falls = upper.mean >= 1 - NEAR and upper.interval[1] < lower.interval[0]
    return {**verdict(stated, measured, falls), INTERVAL: interval_text(upper, 3)}


def tables(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the factor of every stack and placement."""
    for tokens, of_tokens in frame.groupby("tokens", sort=False):
        stacks = of_tokens["stack"].unique()
        yield pd.DataFrame(
            {
                f"factor a layer, {tokens} tokens": placement,
                **{STACKS[s]: with_interval(factor(some[some["stack"] == s])) for s in stacks},
            }
            for placement, some in of_tokens.groupby("placement", sort=False)
        )


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """Draw the gradient over the layers as a share of the last, for post and pre."""
    shown = frame[frame["placement"].isin(PAPER)]
    shown = shown if len(shown) else frame
    shown = shown[shown["tokens"] == frame["tokens"].iloc[0]]
    lines = []
    for (placement, stack), some in shown.groupby(["placement", "stack"], sort=False):
        means = some.groupby("layer")["gradient"].mean()
        # it is 0 under rezero, whose branches start with a factor of 0
        shares = means / means.iloc[-1] if means.iloc[-1] > 0 else means.iloc[:0]
        lines.append((f"{placement}, {STACKS[stack]}", shares))
    draw_lines(axes, lines, xlabel="layer l", ylabel="gradient of W^2 / that of layer L")
    layers = range(1, frame["layer"].max() + 1)
    decay = [PAPER["post"] ** (layers[-1] - layer) for layer in layers]
    axes.plot(layers, decay, **GRAY, label="(2/3)^((L-l)/2)")
    axes.set_yscale("log")
    axes.legend(loc="lower right", fontsize=7)
