"""How far the difference of two language models depends on the text that is scored.

The interval of a comparison is over seeds; here the text varies too: docs/statistics.md. The blocks
are long enough to be nearly independent. Their standard error is that of a ratio, as they differ in
their number of tokens, and the quantile of Student's t is that of the smaller number. A text of one
window has no such interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from norm_lab.study.significance import CONFIDENCE, describe
from norm_lab.study.study import Study
from norm_plugin.io.command_line import CommandError

BLOCKS = 20
Windows = Sequence[tuple[int, float]]
"""The tokens and the loss in bits of each window of a text."""


def compare_over_text(study: Study) -> pd.DataFrame:
    """Compare each arm with its baseline, over seeds and over seeds and text.

    Returns:
        columns ``arm``, ``baseline``, ``n``, ``difference`` in bits per token of the test text, and
        the ends of its 95 % intervals: ``difference_low`` and ``difference_high`` over seeds,
        ``text_low`` and ``text_high`` over seeds and text, NaN for one window. An arm that does not
        share two seeds of stored windows with its baseline has no row.
    """
    kept: dict[str, dict[int, Windows]] = {}
    for run in study.runs.to_dict("records"):
        if isinstance(run.get("windows"), list):
            kept.setdefault(run["arm"], {})[run["seed"]] = run["windows"]
    rows = []
    for arm, baseline in study.comparisons.pairs:
        sides = kept.get(arm, {}), kept.get(baseline, {})
        if arm != baseline and len(sides[0].keys() & sides[1].keys()) > 1:
            rows.append({"arm": arm, "baseline": baseline, **difference_over_text(*sides)})
    return pd.DataFrame(rows)


def difference_over_text(
    arm: Mapping[int, Windows], baseline: Mapping[int, Windows]
) -> dict[str, float]:
    """Return the mean difference of two arms over their common seeds, with its intervals.

    Raises:
        CommandError: the runs were scored on different windows.
    """
    seeds = sorted(arm.keys() & baseline.keys())
    sides = (arm, baseline)
    texts = {tuple(tokens for tokens, _ in side[seed]) for side in sides for seed in seeds}
    if len(texts) > 1:
        raise CommandError(
            "the runs were scored on other windows of the text; score them again, or report them "
            "apart"
        )
    tokens = np.array(texts.pop())
    losses = [np.array([[bits for _, bits in side[seed]] for seed in seeds]) for side in sides]
    differences = losses[0] - losses[1]  # (seeds, windows), in bits
    by_seed = differences.sum(1) / tokens.sum()
    mean = by_seed.mean()

    blocks = np.array_split(np.arange(len(tokens)), min(BLOCKS, len(tokens)))
    residuals = [(differences.mean(0) - mean * tokens)[block].sum() for block in blocks]
    n, b = len(seeds), len(blocks)
    of_text = math.nan if b == 1 else np.square(residuals).sum() * b / (b - 1) / tokens.sum() ** 2
    variance = by_seed.var(ddof=1) / n + of_text
    half = stats.t.ppf((1 + CONFIDENCE) / 2, min(n, b) - 1) * math.sqrt(variance)
    low, high = describe(by_seed).interval
    return {
        "n": n,
        "difference": float(mean),
        "difference_low": low,
        "difference_high": high,
        "text_low": float(mean - half),
        "text_high": float(mean + half),
    }
