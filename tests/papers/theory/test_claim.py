"""The fits of the claims, each of measurements whose answer is known."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from known_cases import BATCHES
from papers.theory.claim import Options, contains, exponent, factor_below, rate, with_interval
from papers.theory.models import random_batches


def points(by_seed):
    """A frame of the (x, y) of each seed."""
    return pd.DataFrame(
        [{"seed": seed, "x": x, "y": y} for seed, some in enumerate(by_seed) for x, y in some]
    )


def test_an_exponent_is_that_of_the_power_and_has_an_interval_over_seeds():
    sample = exponent(points([[(x, 3 * x**p) for x in (2, 4, 16)] for p in (-0.4, -0.6)]), "y", "x")
    assert sample.mean == pytest.approx(-0.5)
    # Student's interval of two values: the quantile 12.706 times the standard error 0.1
    assert sample.interval == pytest.approx((-0.5 - 1.2706, -0.5 + 1.2706), rel=1e-4)
    assert contains(sample, 0.5)
    assert contains(sample, 0.8) is False
    assert with_interval(sample, 1) == "-0.5 (-1.8 to 0.8)"
    one_seed = exponent(points([[(1, 1.0), (2, 4.0)]]), "y", "x")
    assert contains(one_seed, 2) is None and with_interval(one_seed) == "2.000 (one seed)"


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_what_is_not_a_number_above_0_has_no_fit(value):
    assert rate(points([[(1, 1.0), (2, value)]]), "y", "x") is None
    assert exponent(points([[(1, 1.0), (2, value)]]), "y", "x") is None
    assert exponent(points([[(1, 1.0), (value, 1.0)]]), "y", "x") is None
    assert with_interval(None) == "undefined"


def test_the_factor_of_a_layer_is_that_of_the_decay():
    layers = range(1, 13)
    decays = [[(layer, q ** (12 - layer)) for layer in layers] for q in (0.8, 0.9)]
    sample = factor_below(rate(points(decays), "y", "x"))
    assert sample.mean == pytest.approx(math.sqrt(0.8 * 0.9))
    assert sample.interval[0] < 0.8 < 0.9 < sample.interval[1]


def test_other_placements_have_half_of_the_seeds_and_no_corpus():
    options = Options(("a", "b"), main=("b",), random=BATCHES, real=random_batches(), seeds=5)
    assert [len(options.seeds_of(name)) for name in "ab"] == [3, 5]
    assert [len(options.batches_of(name)) for name in "ab"] == [1, 2]
    assert len(list(options.draws("b"))) == 10
