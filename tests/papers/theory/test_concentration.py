"""The share of lengths outside of the bound, counted and judged."""

from __future__ import annotations

import math

import pytest
import torch

from known_cases import verdicts
from papers.theory import concentration


def test_the_share_outside_is_counted():
    draws = torch.tensor([0.5, 1.0, 1.0, 1.5])
    assert concentration.share_outside(draws, 0.4) == 0.5
    assert concentration.share_outside(draws, 0.6) == 0
    assert math.isnan(concentration.share_outside(torch.tensor([1.0, math.nan]), 0.5))


def test_a_chi_square_stays_within_the_bound_and_a_wide_one_does_not():
    def row_of(draws, n):
        shares = concentration.share_rows(draws, n, tokens="none", x="x")
        limit, row = verdicts(concentration, shares)
        assert limit["eps = 0.3"] == f"{math.exp(-n * 0.3**2 / 8):.4f}"
        return row

    # exp(-64 0.5^2 / 8) = 0.14 is the smallest bound, and 20,000 draws test it
    row = row_of(concentration.chi_square(64), 64)
    assert (row["holds"], row["bound < 1 / draws"]) == ("yes", "0")
    # exp(-512 0.3^2 / 8) is 0.003: the bounds of 0.3 to 0.5 are below 1 / 100
    assert row_of(torch.ones(100), 512)["bound < 1 / draws"] == "5"
    row = row_of(torch.cat([torch.zeros(50), torch.full((50,), 2.0)]), 64)
    assert (row["holds"], row["measured"]) == ("no", "within at 0 eps")
    assert row["excess"] == f"{1 - math.exp(-2):.3f} at 0.5"


@pytest.mark.parametrize(("far", "holds"), [(12, "yes"), (14, "no")])
def test_the_share_that_the_paper_found_is_tested_where_its_lemma_is(far, holds):
    draws = torch.tensor([0.5] * (far // 2) + [1.0] * (100 - far) + [1.5] * (far // 2))
    shares = concentration.share_rows(draws, 512, tokens="random", x="pre")
    *_, row = verdicts(concentration, shares)
    assert (row["measured"], row["holds"]) == (f"0.{far}00", holds)
