"""Own runs beside a published study: the rule, its errors, and runs that are not alike."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from made_up_results import folder_of, made_up
from norm_lab.study.reproduction import Agreement, agreement, conditions, equal_scores, reproduced
from norm_lab.study.significance import compare_independent, difference_of, estimate
from norm_lab.study.study import read_study

PUBLISHED = (1.0, 2.0, 3.0, 4.0)
RATE = "optimization.lr"


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ((1.5, 2.5, 3.5, 4.5), Agreement.AGREES),
        ((11.0, 12.0, 13.0, 14.0), Agreement.DIFFERS),
        ((-30.0, 2.0, 40.0, 1.0), Agreement.TOO_FEW),  # includes any value of interest
        ((2.6,), Agreement.TOO_FEW),  # has no interval
        ((2.5,), Agreement.AGREES),  # equal to the last digit
    ],
)
def test_the_verdict_follows_the_interval_of_the_difference(own, verdict):
    assert agreement(estimate(own), estimate(PUBLISHED)) == verdict


def test_the_interval_of_the_difference_is_that_of_welch():
    own = (2.0, 2.5, 7.0)
    difference = difference_of(estimate(own), estimate(PUBLISHED))
    assert difference.interval == pytest.approx(compare_independent(own, PUBLISHED).interval)


def test_alike_studies_differ_in_about_five_of_a_hundred_estimates():
    """The bounds are three standard errors of a share of 5 % in 500 draws."""
    draw, verdicts = np.random.default_rng(0), Counter()
    for _ in range(500):
        own, published = (estimate(draw.normal(size=6)) for _ in range(2))
        verdicts[agreement(own, published)] += 1
    assert 0.02 <= verdicts[Agreement.DIFFERS] / 500 <= 0.08
    assert verdicts[Agreement.AGREES] / 500 > 0.8


def runs_of(folder, seeds, **scores):
    """A study with three seeds of each arm, and a constant difference between seeds."""
    return read_study(
        folder_of(
            folder,
            *(
                made_up(norm, seed, bleu + seed / 10, differs=differs, **more)
                for norm, (bleu, differs, more) in scores.items()
                for seed in seeds
            ),
        )
    )


def test_arms_are_the_same_under_other_names(tmp_path):
    """Names leave out what all arms share, which is more with fewer arms."""
    seeds, deep = (1, 2, 3), {"model.encoder_layers": 12}
    layernorm, far = ("layernorm-encoder-layers-12", "far-encoder-layers-12")
    both = {layernorm: (30.0, deep, {}), far: (35.0, deep, {})}
    published = runs_of(tmp_path / "a", seeds, **both, layernorm=(20.0, {}, {}))
    both[far] = (15.0, deep, {"versions__torch": "9.9"})
    own = runs_of(tmp_path / "b", seeds, **both)
    assert set(own.arms) == {"layernorm, pre", "far, pre"} != set(published.arms)
    table = reproduced(own, published).set_index(["arm", "baseline"])
    assert table.loc[("layernorm, pre", ""), "published"] == pytest.approx(30.2)
    assert table.loc[("layernorm, pre", ""), "agreement"] == Agreement.AGREES
    assert table.loc[("far, pre", ""), "agreement"] == Agreement.DIFFERS
    assert equal_scores(own, published) == (3, 6)
    assert conditions(own, published) == ["versions.torch (2.13.0 or 9.9; published: 2.13.0)"]


def test_arms_that_differ_only_in_what_a_study_varies_are_not_mistaken_for_each_other(tmp_path):
    def at_rates(folder, scores):
        results = [
            made_up(f"layernorm-lr-{lr}", seed, bleu + seed / 10, differs={RATE: [lr]})
            for lr, bleu in scores.items()
            for seed in (1, 2, 3)
        ]
        folders = folder_of(folder, *results)
        return read_study(folders, baseline="layernorm-lr-0.2", vary=[RATE])

    published = at_rates(tmp_path / "a", {0.1: 30.0, 0.2: 20.0})
    own = at_rates(tmp_path / "b", {0.2: 20.0})
    (row,) = reproduced(own, published).to_dict("records")
    assert (row["published"], row["agreement"]) == (pytest.approx(20.2), Agreement.AGREES)
    assert equal_scores(own, published) == (3, 3)
    again = reproduced(published, published)  # the comparison of the two rates, too
    assert again["agreement"].tolist() == [Agreement.AGREES] * 3
