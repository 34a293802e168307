"""Intervals over seeds and text: what they cover where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from made_up_results import folder_of, made_up
from norm_lab.report.tables import tables_of
from norm_lab.study.significance import describe
from norm_lab.study.study import read_study
from norm_lab.study.windows import compare_over_text, difference_over_text
from norm_plugin.io.command_line import CommandError

SEEDS, WINDOWS, TOKENS = 6, 400, 64
TRUE = 0.02  # bits per token


def losses(generator, seeds=SEEDS, text=0.0, noise=0.02):
    """Windows of each seed: its own level, the text's effect, which neighbors share, and noise."""
    innovations = generator.normal(size=WINDOWS + 4)
    passages = np.convolve(innovations, np.ones(5) / 5**0.5, mode="valid") * text
    of_seed = generator.normal(scale=0.005, size=(seeds, 1))
    mean = TRUE + of_seed + passages + generator.normal(scale=noise, size=(seeds, WINDOWS))
    return {seed: [(TOKENS, TOKENS * float(bits)) for bits in mean[seed]] for seed in range(seeds)}


NOTHING = {seed: [(TOKENS, 0.0)] * WINDOWS for seed in range(SEEDS)}


def test_the_interval_over_seeds_and_text_covers_the_truth():
    """Of 95 % intervals; 300 trials have a standard error of 1.3 points."""
    generator, covered = np.random.default_rng(1), {"difference": 0, "text": 0}
    for _ in range(300):
        row = difference_over_text(losses(generator, text=0.1), NOTHING)
        for name in covered:
            covered[name] += row[f"{name}_low"] < TRUE < row[f"{name}_high"]
    assert covered["difference"] < 0.75 * 300  # of the text that was scored alone
    assert covered["text"] > 0.92 * 300


def test_a_text_without_influence_adds_little():
    row = difference_over_text(losses(np.random.default_rng(2)), NOTHING)
    seeds, both = (row[f"{name}_high"] - row[f"{name}_low"] for name in ("difference", "text"))
    assert seeds < both < 1.3 * seeds  # 400 windows of noise 0.02, beside seeds of 0.005


def test_windows_count_by_their_tokens():
    arm = {1: [(60, 60.0), (20, 0.0)], 2: [(60, 120.0), (20, 0.0)]}
    row = difference_over_text(arm, {seed: [(60, 0.0), (20, 0.0)] for seed in arm})
    assert row["difference"] == pytest.approx((60 / 80 + 120 / 80) / 2)


@pytest.mark.parametrize("windows", [1, 2])
def test_a_text_of_few_windows_leaves_the_interval_over_seeds(windows):
    arm = {seed: [(TOKENS, bits)] * windows for seed, bits in ((1, 1.0), (2, 1.0), (3, 2.0))}
    baseline = {seed: [(TOKENS, 0.0)] * windows for seed in arm}
    row = difference_over_text(arm, baseline)
    by_seed = describe([1 / TOKENS, 1 / TOKENS, 2 / TOKENS])
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(by_seed.interval)
    assert math.isnan(row["text_low"]) == (windows == 1)


def test_other_windows_are_not_compared():
    with pytest.raises(CommandError, match="other windows of the text"):
        difference_over_text({1: [(4, 1.0)], 2: [(4, 1.0)]}, {1: [(4, 1.0)], 2: [(5, 1.0)]})


@pytest.mark.parametrize("windows", [1, WINDOWS])
def test_the_report_compares_the_arms_that_have_windows(tmp_path, windows):
    generator = np.random.default_rng(3)
    stored = {
        norm: {seed: kept[:windows] for seed, kept in by_seed.items()}
        for norm, by_seed in (("layernorm", NOTHING), ("rmsnorm", losses(generator)))
    }
    scores = {"loss": {"score": 1.5, "label": "bits"}}
    runs = [
        made_up(norm, seed, metric="bits", scores=scores, windows=by_seed.get(seed))
        for norm, by_seed in {**stored, "dyt": {}}.items()
        for seed in (1, 2, 3)
    ]
    study = read_study(folder_of(tmp_path, *runs))
    table = compare_over_text(study)
    assert table["arm"].tolist() == ["rmsnorm, pre"] and table["n"].tolist() == [3]
    shown = tables_of(study)["text"]
    assert shown.text["difference"].item() == f"{table['difference'].item():+.3f}"
    assert (shown.text["over seeds and text"].item() == "-") == (windows == 1)
    assert ("one window" in shown.note) == (windows == 1)
