"""The factor by which the gradient decays from layer to layer."""

from __future__ import annotations

import math

from known_cases import verdicts
from papers.theory import every_layer


def over_layers(values_of_seeds, **columns):
    """A row for each of six layers and seed."""
    return [
        {"tokens": "random", "seed": seed, "layer": layer, "gradient": value(layer), **columns}
        for seed, value in enumerate(values_of_seeds)
        for layer in range(1, 7)
    ]


def test_the_factor_is_compared_with_the_papers():
    columns = {"stack": "decoder", "placement": "post", "cross_sum": 1.5, "squared_length": None}
    decays = [lambda layer, q=q: q ** (6 - layer) for q in (0.81, 0.822)]
    (row,) = verdicts(every_layer, over_layers(decays, **columns))
    assert (row["stated"], row["measured"]) == ("at most 0.816 + 0.05", "0.816")
    assert (row["contains it"], row["holds"]) == ("yes", "yes")
    assert (row["a"], row["a^(-1/2)"]) == ("1.50", "0.816")
    for factor, holds in ((1.0, "no"), (0.5, "yes")):  # the paper's is an upper bound
        decay = [lambda layer: factor ** (6 - layer)] * 2  # noqa: B023  called at once
        (row,) = verdicts(every_layer, over_layers(decay, **columns))
        assert (row["measured"], row["holds"]) == (f"{factor:.3f}", holds)


def test_a_gradient_that_falls_with_the_length_of_the_stream_is_seen():
    columns = {"stack": "simplified", "placement": "pre", "cross_sum": math.nan}
    rows = over_layers([lambda layer: layer**-0.5] * 2, **columns)
    (row,) = verdicts(every_layer, [{**row, "squared_length": 2.0 * row["layer"]} for row in rows])
    assert row["exponent in |x_l|^2"] == "-0.500 (-0.500 to -0.500)"
    assert row["stated"] == "nearer to 1 in layers 5 to 6 than in 1 to 3"
    assert (row["measured"], row["holds"]) == ("1.095 against 1.316", "yes")


def test_under_pre_norm_a_factor_that_stays_does_not_come_near_1():
    columns = {"stack": "simplified", "placement": "pre", "cross_sum": math.nan}
    rows = over_layers([lambda layer: 1.1**-layer] * 2, squared_length=None, **columns)
    (row,) = verdicts(every_layer, rows)
    assert row["holds"] == "no"
