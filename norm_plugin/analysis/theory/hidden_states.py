"""Lemma 2 of Xiong et al. 2020: how long the hidden states of each layer are."""

from __future__ import annotations

from typing import Any, NamedTuple

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.seeds import Sample, describe
from norm_plugin.analysis.theory.claim import (
    Claim,
    Findings,
    Options,
    Row,
    Table,
    with_interval,
)
from norm_plugin.analysis.theory.fits import contains
from norm_plugin.analysis.theory.rows import group
from norm_plugin.analysis.theory.stack_pass import stack_pass

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


def measure(options: Options, placement: str) -> list[Row]:
    """|x|^2 / d of each layer and seed, means over the positions of a batch."""
    rows: list[Row] = []
    for batches in options.batches_of(placement):
        for seed in options.seeds_of(placement):
            found = stack_pass(
                placement, options.norm_type, options.depth, options.dim, batches, seed
            )
            at = {OUTPUT: (0, found.outputs)}
            at |= {branch: (1, lengths) for branch, lengths in found.sums.items()}
            rows += [
                {
                    "tokens": batches.kind,
                    "placement": placement,
                    "place": place,
                    "layer": layer,
                    "seed": seed,
                    "squared_length": float(one.mean()),
                }
                for place, (first, lengths) in at.items()
                for layer, one in enumerate(lengths, start=first)
            ]
    return rows


def by_layer(rows: list[Row]) -> dict[int, Sample]:
    """The mean over seeds, by layer, of rows of one placement and place."""
    return {
        layer: describe([row["squared_length"] for row in some])
        for (layer,), some in group(rows, "layer").items()
    }


def find(rows: list[Row]) -> Findings:
    """Compare the lengths with Lemma 2, and list what each placement has in three layers."""
    sentences: list[str] = []
    table: list[tuple[str, ...]] = []
    depth = max(row["layer"] for row in rows)
    shown = sorted({1, max(1, depth // 2), depth})
    for (tokens, placement, place), some in group(rows, "tokens", "placement", "place").items():
        bounds = LEMMA.get(placement)
        if bounds is not None and bounds.place == place:
            say = of_equality if bounds.b == bounds.c else of_bounds
            layers = [row for row in some if row["layer"]]  # the lemma is about layers
            sentences.append(f"`{placement}`, {tokens} tokens: {say(layers, bounds)}")
        found = by_layer(some)
        cells = (with_interval(found[layer], 2) for layer in shown)
        table.append((tokens, placement, PLACES.get(place, place), *cells))
    header = ("tokens", "placement", "x", *(f"E|x|^2 / d, l = {layer}" for layer in shown))
    return Findings(sentences, [Table(header, table)])


def of_bounds(rows: list[Row], bounds: Bounds) -> str:
    """Whether the interval of each layer touches what the bounds allow."""
    found = by_layer(rows)
    outside = [layer for layer, one in found.items() if not _touches(one, *bounds.at(layer))]
    first, *_, last = found if len(found) > 1 else [*found, *found]
    said = f"E|x|^2 / d is {found[first].mean:.2f} in layer {first}, where the lemma allows "
    said += "{:.2f} to {:.2f}".format(*bounds.at(first))
    said += f", and {found[last].mean:.2f} in layer {last}, where it allows "
    said += "{:.2f} to {:.2f}. ".format(*bounds.at(last))
    if not outside:
        return said + f"It is within the bounds in each of the {len(found)} layers."
    return said + f"It is outside of the bounds in layers {', '.join(map(str, outside))}."


def _touches(found: Sample, low: float, high: float) -> bool:
    least, most = found.interval or (found.mean, found.mean)
    return least <= high and most >= low


def of_equality(rows: list[Row], bounds: Bounds) -> str:
    """Whether the mean over layers is what the lemma says; a test of each layer would be many."""
    means = [
        describe([row["squared_length"] for row in some]).mean
        for some in group(rows, "seed").values()
    ]
    pooled, layers = describe(means), by_layer(rows).values()
    least, most = (pick(one.mean for one in layers) for pick in (min, max))
    held = contains(pooled, bounds.a)
    said = f"E|x|^2 / d is {with_interval(pooled)} on average over the layers, where the lemma has "
    said += f"{bounds.a:g}; single layers have {least:.3f} to {most:.3f}"
    if held is None:
        return said + "."
    return said + f". The interval {'contains' if held else 'does not contain'} {bounds.a:g}."


def plot(rows: list[Row], axes: Any) -> None:
    """The output of each layer on random tokens, a line a placement, and the bounds of ``pre``."""
    outputs = [row for row in rows if row["place"] == OUTPUT and row["tokens"] == rows[0]["tokens"]]
    for place, ((placement,), some) in enumerate(group(outputs, "placement").items()):
        found = by_layer(some)
        values = [one.mean for one in found.values()]
        axes.plot(list(found), values, **style(place), label=placement)
        if placement in LEMMA and LEMMA[placement].place == OUTPUT:
            low, high = zip(*(LEMMA[placement].at(layer) for layer in found))
            axes.fill_between(list(found), low, high, alpha=0.15, linewidth=0, color="#888888")
    axes.set_xlabel("layer l")
    axes.set_ylabel("E |x|^2 / d")
    axes.set_yscale("log")
    if axes.lines:
        axes.legend(loc="upper left", fontsize=7, ncols=2)


CLAIM = Claim(
    name="hidden-states",
    title="Lengths of the hidden states",
    source="Xiong et al. 2020, Lemma 2",
    statement=(
        "In the simplified setting, with x the output of layer l under pre-norm, "
        "`(1 + l/2) d <= E|x|^2 <= (1 + 3l/2) d`. Under post-norm, with x the sum that goes into "
        "the norm after the feed-forward network, `E|x|^2 = 3d/2`.",
    ),
    method=(
        "Mean over positions for each seed, then mean and 95 % interval over seeds. A layer is "
        "within the bounds if its interval touches what the lemma allows. The lemma says nothing "
        "about the other placements.",
    ),
    caption="Squared length of the output of each layer. Gray: the bounds of Lemma 2 for pre.",
    measure=measure,
    find=find,
    plot=plot,
)
