"""Lengths of the hidden states.

**Claim** (Xiong et al. 2020, Lemma 2). In the simplified setting, with x the output of layer l
under pre-norm, `(1 + l/2) d <= E|x|^2 <= (1 + 3l/2) d`. Under post-norm, with x the sum that goes
into the norm after the feed-forward network, `E|x|^2 = 3d/2`.

**Method.** Mean over positions for each seed, then mean and 95 % interval over seeds. A layer is
within the bounds if its interval touches what the lemma allows. The equality is tested on the mean
over the layers: a test of each layer would be many. The lemma says nothing about the other
placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.stats import Sample, describe
from norm_plugin.analysis.theory.claim import (
    Claim,
    Options,
    Row,
    contains,
    groups,
    like_first,
    verdict,
    with_interval,
)
from norm_plugin.analysis.theory.stacks import stack_pass

PLACES = {"output": "output of the layer", "self": "attention's sum", "ffn": "sum of the FFN"}
OUTPUT = "output"
"""The place of a hidden state that is the output of a layer, 0 being the embeddings."""


class Bounds(NamedTuple):
    """What Lemma 2 says of E |x|^2 / d at one place of layer l: a + b l at least, a + c l at most.

    Attributes:
        place: :data:`OUTPUT`, or the branch before whose norm on the sum x is.
    """

    place: str
    a: float
    b: float
    c: float

    def at(self, layer: int) -> tuple[float, float]:
        """The least and the most that layer ``layer`` may have."""
        return self.a + self.b * layer, self.a + self.c * layer


LEMMA = {
    "pre": Bounds(OUTPUT, 1.0, 0.5, 1.5),
    "post": Bounds("ffn", 1.5, 0.0, 0.0),
}
"""By placement. An equality has two equal bounds."""


def measure(options: Options, placement: str) -> Iterator[Row]:
    """|x|^2 / d of each layer and seed, means over the positions of a batch."""
    for batches in options.batches_of(placement):
        for seed in options.seeds_of(placement):
            found = stack_pass(
                placement, options.norm_type, options.depth, options.dim, batches, seed
            )
            at = {OUTPUT: (0, found.outputs)}
            at |= {branch: (1, lengths) for branch, lengths in found.sums.items()}
            for place, (first, lengths) in at.items():
                for layer, length in enumerate(lengths, start=first):
                    yield {
                        "tokens": batches.kind,
                        "placement": placement,
                        "place": place,
                        "layer": layer,
                        "seed": seed,
                        "squared_length": float(length.mean()),
                    }


def by_layer(frame: pd.DataFrame) -> dict[int, Sample]:
    """The mean over seeds, by layer, of one placement and place."""
    return {layer: describe(some["squared_length"]) for layer, some in groups(frame, "layer")}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """The lengths beside Lemma 2."""
    layers = frame[frame["layer"] > 0]  # the lemma is about layers
    for (tokens, placement, place), some in groups(layers, "tokens", "placement", "place"):
        bounds = LEMMA.get(placement)
        if bounds is not None and bounds.place == place:
            check = of_equality if bounds.b == bounds.c else of_bounds
            for row in check(some, bounds):
                yield {"tokens": tokens, "placement": placement, **row}


def of_bounds(frame: pd.DataFrame, bounds: Bounds) -> Iterator[Row]:
    """Whether each layer is within the bounds; rows of the first, the last and those outside."""
    samples = by_layer(frame)
    within = {layer: _touches(one, *bounds.at(layer)) for layer, one in samples.items()}
    for layer, one in samples.items():
        if layer in (min(samples), max(samples)) or not within[layer]:
            stated = "{:.2f} to {:.2f}".format(*bounds.at(layer))
            yield {"layer": str(layer), **verdict(stated, one, within[layer], digits=2)}
    count = f"{sum(within.values())} within the bounds"
    stated = f"{len(within)} within the bounds"
    yield {"layer": f"{min(samples)} to {max(samples)}", **verdict(stated, count, count == stated)}


def _touches(sample: Sample, low: float, high: float) -> bool:
    least, most = sample.interval or (sample.mean, sample.mean)
    return least <= high and most >= low


def of_equality(frame: pd.DataFrame, bounds: Bounds) -> Iterator[Row]:
    """Whether the mean over layers is what the lemma says, and the range of single layers."""
    pooled = describe([describe(some["squared_length"]).mean for _, some in groups(frame, "seed")])
    stated = f"{bounds.a:g}"
    yield {"layer": "mean over layers", **verdict(stated, pooled, contains(pooled, bounds.a))}
    means = [one.mean for one in by_layer(frame).values()]
    single = f"{min(means):.3f} to {max(means):.3f}"
    yield {"layer": "single layers", **verdict(stated, single, None)}


def tables(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """What each placement has in three layers."""
    depth = max(frame["layer"])
    rows = []
    for (tokens, placement, place), some in groups(frame, "tokens", "placement", "place"):
        samples = by_layer(some)
        row = {"tokens": tokens, "placement": placement, "x": PLACES.get(place, place)}
        for layer in sorted({1, max(1, depth // 2), depth}):
            row[f"E|x|^2 / d, l = {layer}"] = with_interval(samples[layer], 2)
        rows.append(row)
    return [pd.DataFrame(rows)]


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """The output of each layer on random tokens, a line a placement, and the bounds of ``pre``."""
    outputs = like_first(frame, "tokens").query("place == @OUTPUT")
    for place, (placement, some) in enumerate(groups(outputs, "placement")):
        means = some.groupby("layer")["squared_length"].mean()
        axes.plot(means.index, means, **style(place), label=placement)
        if placement in LEMMA and LEMMA[placement].place == OUTPUT:
            low, high = zip(*map(LEMMA[placement].at, means.index))
            axes.fill_between(means.index, low, high, alpha=0.15, linewidth=0, color="#888888")
    axes.set_xlabel("layer l")
    axes.set_ylabel("E |x|^2 / d")
    axes.set_yscale("log")
    if axes.lines:
        axes.legend(loc="upper left", fontsize=7, ncols=2)


CLAIM = Claim(
    name="hidden-states",
    place=1,
    text=__doc__,
    caption="Squared length of the output of each layer. Gray: the bounds of Lemma 2 for pre.",
    case=("placement", "place", "tokens"),
    measure=measure,
    verdicts=verdicts,
    tables=tables,
    plot=plot,
)
