"""norm_plugin.analysis.rows: how numbers are written into the cells of a table."""

from __future__ import annotations

import pytest

from norm_plugin.analysis.rows import p_text
from norm_plugin.analysis.seeds import LEVEL


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (None, "-"),
        (1.0, "1.000"),
        (0.0512, "0.051"),
        (0.0501, "0.0501"),
        (0.05, "0.05"),
        (0.0499, "0.0499"),
        (0.0005, "0.001"),
        (0.0002, "<0.001"),
    ],
)
def test_p_shows_on_which_side_of_the_level_it_is(p, text):
    assert p_text(p) == text


def test_a_p_of_five_percent_is_not_below_the_level():
    corrected = 3 * (2 / 120)  # 7 seeds against 3, and three comparisons
    assert corrected >= LEVEL
