"""Lengths of the hidden states.

Xiong et al. 2020, Lemma 2 and its proof, of the simplified setting: `(1 + l/2) d <= E|x|^2 <=
(1 + 3l/2) d` for the output x of layer l under pre-norm. Under post-norm, `d <= E|x|^2 <= 2d` for
the sum that goes into the norm after the attention, and `E|x|^2 = 3d/2` for the sum that goes into
the norm after the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.study.significance import Sample, describe
from papers.theory.claim import (
    Options,
    Row,
    cases,
    contains,
    draw_lines,
    like_first,
    verdict,
    with_interval,
)

CAPTION = "Squared length of the output of each layer. Gray: the bounds of Lemma 2 for pre."

PLACES = {"output": "output of the layer", "self": "attention's sum", "ffn": "sum of the FFN"}
OUTPUT = "output"
"""The place of a hidden state that is the output of a layer; layer 0 is the embeddings."""


class Bounds(NamedTuple):
    """Lemma 2 on E |x|^2 / d at one place: each bound is a number plus one per layer."""

    lower: tuple[float, float]
    upper: tuple[float, float]

    def at(self, layer: int) -> tuple[float, float]:
        """Return the lower and the upper bound for layer ``layer``."""
        low, high = (at_0 + per_layer * layer for at_0, per_layer in self)
        return low, high


LEMMA = {
    ("pre", OUTPUT): Bounds((1.0, 0.5), (1.0, 1.5)),
    ("post", "self"): Bounds((1.0, 0.0), (2.0, 0.0)),
    ("post", "ffn"): Bounds((1.5, 0.0), (1.5, 0.0)),
}
"""The bounds by placement and place, :data:`OUTPUT` or the branch whose norm on the sum follows x.

An equality has two equal bounds.
"""
CASE = ("tokens", "placement", "place")


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure |x|^2 / d of each layer and seed, as means over the positions of a batch."""
    for where, batches, seed in options.draws(placement):
        stack = options.stack_pass(placement, batches, seed)
        at = {OUTPUT: (0, stack.outputs)} | {name: (1, sums) for name, sums in stack.sums.items()}
        for place, (first, lengths) in at.items():
            for layer, length in enumerate(lengths, start=first):
                at_layer = {"place": place, "layer": layer, "squared_length": float(length.mean())}
                yield {**where, **at_layer}


def by_layer(frame: pd.DataFrame) -> dict[int, Sample]:
    """Return the mean over seeds, by layer, of one placement and place."""
    layers = frame.groupby("layer", sort=False)["squared_length"]
    return {layer: describe(lengths) for layer, lengths in layers}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge the lengths by Lemma 2."""
    layers = frame[frame["layer"] > 0]  # the lemma is about layers
    for case, some in cases(layers, *CASE):
        place = case.pop("place")
        if bounds := LEMMA.get((case["placement"], place)):
            case["x"] = PLACES[place]
            check = judge_equality if bounds.lower == bounds.upper else judge_bounds
            yield from ({**case, **row} for row in check(some, bounds))


def judge_bounds(frame: pd.DataFrame, bounds: Bounds) -> Iterator[Row]:
    """Judge whether each layer is within the bounds; rows of the first, the last and violations."""
    samples = by_layer(frame)
    within = {layer: _touches(sample, *bounds.at(layer)) for layer, sample in samples.items()}
    for layer, sample in samples.items():
        if layer in (min(samples), max(samples)) or not within[layer]:
            stated = "{:.2f} to {:.2f}".format(*bounds.at(layer))
            yield {"layer": str(layer), **verdict(stated, sample, within[layer], digits=2)}
    count = f"{sum(within.values())} within the bounds"
    stated = f"{len(within)} within the bounds"
    yield {"layer": f"{min(samples)} to {max(samples)}", **verdict(stated, count, count == stated)}


def _touches(sample: Sample, low: float, high: float) -> bool:
    least, most = (sample.mean, sample.mean) if sample.count == 1 else sample.interval
    return least <= high and most >= low


def judge_equality(frame: pd.DataFrame, bounds: Bounds) -> Iterator[Row]:
    """Judge whether the mean over layers is what the lemma says, and the range of single layers."""
    pooled = describe(frame.groupby("seed")["squared_length"].mean())
    length, _ = bounds.lower
    stated = f"{length:g}"
    yield {"layer": "mean over layers", **verdict(stated, pooled, contains(pooled, length))}
    means = [sample.mean for sample in by_layer(frame).values()]
    single = f"{min(means):.3f} to {max(means):.3f}"
    yield {"layer": "single layers", **verdict(stated, single, None)}


def tables(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Return E|x|^2 / d of each placement in the first, the middle and the last layer."""
    depth = max(frame["layer"])
    rows = []
    for row, some in cases(frame, *CASE):
        samples, place = by_layer(some), row.pop("place")
        row["x"] = PLACES.get(place, place)
        for layer in sorted({1, max(1, depth // 2), depth}):
            row[f"E|x|^2 / d, l = {layer}"] = with_interval(samples[layer], 2)
        rows.append(row)
    return [pd.DataFrame(rows)]


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """Draw the output of each layer on random tokens, one line per placement, and pre's bounds."""
    outputs = like_first(frame, "tokens").query("place == @OUTPUT")
    lines = {
        placement: some.groupby("layer")["squared_length"].mean()
        for placement, some in outputs.groupby("placement", sort=False)
    }
    draw_lines(axes, lines.items(), xlabel="layer l", ylabel="E |x|^2 / d", yscale="log")
    for placement, means in lines.items():
        if bounds := LEMMA.get((placement, OUTPUT)):
            low, high = zip(*map(bounds.at, means.index))
            axes.fill_between(means.index, low, high, alpha=0.15, linewidth=0, color="#888888")
    if lines:
        axes.legend(loc="upper left", fontsize=7, ncols=2)
