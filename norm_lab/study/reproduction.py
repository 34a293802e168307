"""Compare a reproduction with the published study: the same estimates, each from its own runs.

An estimate is the mean of an arm or of a comparison, with its standard error over seeds. The two
are taken as independent, so their difference has Welch's interval. If the seeds are the same, the
estimates may correlate, which makes this interval too wide, not too narrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pandas as pd

from norm_lab.config.studies import MINUS, SCORE, terms
from norm_lab.study.arms import ARM_COLUMNS, parts_of_arm
from norm_lab.study.comparable import NOT_SETTINGS, TRAINING, comparable
from norm_lab.study.comparisons import outcome_values, split_ratio
from norm_lab.study.significance import Comparison, difference_of, estimate
from norm_lab.study.study import Study

WIDEST = 2
"""An interval of the difference that is wider than the published one by more than this says
nothing: it would also agree with values that the published runs exclude."""


class Agreement(StrEnum):
    """The verdict on an estimate of a reproduction."""

    AGREES = "agrees within the interval"
    DIFFERS = "differs"
    TOO_FEW = "too few seeds to say"


def agreement(own: Comparison, published: Comparison) -> Agreement:
    """Return the verdict on an estimate of a reproduction.

    It differs if the 95 % interval of own minus published excludes 0. Otherwise it agrees, unless
    that interval is more than :data:`WIDEST` times as wide as the published one, or undefined, as
    with one seed. Estimates that are equal, as those of runs that are the same to the last digit,
    agree.
    """
    both = difference_of(own, published)
    if both.mean == 0:
        return Agreement.AGREES
    low, high = both.interval
    if low > 0 or high < 0:
        return Agreement.DIFFERS
    low_published, high_published = published.interval
    narrow = high - low <= WIDEST * (high_published - low_published)
    return Agreement.AGREES if narrow else Agreement.TOO_FEW


def reproduced(own: Study, published: Study) -> pd.DataFrame:
    """Return each estimate of both studies: the comparisons, then the scores of the arms.

    The comparisons are those that the study declares, or every arm with its baseline.

    Returns:
        columns ``arm``, ``baseline`` (empty for an arm alone), ``outcome``; ``published`` and
        ``own`` with their ends ``_low`` and ``_high``, and their numbers of seeds ``n_published``
        and ``n_own``; and ``agreement``. Arms that only one of the studies has are omitted.
    """
    names = _names_in(own, published)
    published_estimates = dict(_estimates(published))
    rows = []
    for (arm, baseline, outcome), estimated in _estimates(own):
        key = _renamed(arm, names), _renamed(baseline, names), outcome
        if known := published_estimates.get(key):
            row: dict[str, Any] = {"arm": arm, "baseline": baseline, "outcome": outcome}
            for side, each in (("published", known), ("own", estimated)):
                low, high = each.interval
                row |= {side: each.mean, f"{side}_low": low, f"{side}_high": high}
                row[f"n_{side}"] = each.n
            rows.append({**row, "agreement": agreement(estimated, known)})
    columns = ["arm", "baseline", "outcome", "published", "published_low", "published_high"]
    columns += ["n_published", "own", "own_low", "own_high", "n_own", "agreement"]
    return pd.DataFrame(rows, columns=columns)


def _names_in(own: Study, published: Study) -> dict[str, str]:
    """Return the name of each arm in the published study; names depend on what all arms share.

    Values of what the studies vary, such as tuned rates, are ignored unless arms differ only in
    these.
    """
    both = [
        study.runs.drop_duplicates("arm")[["arm", *ARM_COLUMNS]].to_dict("records")
        for study in (own, published)
    ]
    for vary in ((*own.vary, *published.vary), ()):
        by_parts = [{parts_of_arm(run, vary): run["arm"] for run in runs} for runs in both]
        if list(map(len, by_parts)) == list(map(len, both)):
            break
    arms, published_arms = by_parts
    return {arms[each]: published_arms[each] for each in arms.keys() & published_arms.keys()}


def _renamed(side: str, names: dict[str, str]) -> str:
    """Return a side of a comparison by the names in the published study."""
    return MINUS.join(names.get(name, "") for name in terms(side)) if side else ""


def _estimates(study: Study) -> Iterator[tuple[tuple[str, str, str], Comparison]]:
    """Yield the estimates of a study by arm, baseline and outcome."""
    table = study.comparisons.declared
    table = study.comparisons.of() if table.empty else table
    for row in table[table["difference"].notna()].to_dict("records"):
        seeds = len(row["by_seed"]) or row["n"]
        numbers = row["difference"], row["standard_error"], row["degrees"]
        yield (row["arm"], row["baseline"], row["outcome"]), Comparison(*numbers, n=seeds)
    scores, ratio = outcome_values(study.runs), split_ratio(study.runs)
    for arm in study.arms:
        values = scores[study.runs["arm"] == arm].dropna()
        if len(values):
            yield (arm, "", SCORE), estimate(values, ratio)


def equal_scores(own: Study, published: Study) -> tuple[int, int]:
    """Return how many runs of both studies have equal scores, of how many with the same seed."""
    names = _names_in(own, published)
    known = published.runs.set_index(["arm", "seed"])["score"].to_dict()
    rows = own.runs[["arm", "seed", "score"]].itertuples(index=False)
    both = [(score, known.get((names.get(arm), seed))) for arm, seed, score in rows]
    both = [pair for pair in both if pair[1] is not None]
    return sum(score == other for score, other in both), len(both)


def conditions(own: Study, published: Study) -> list[str]:
    """Return in what the runs of the studies differ: data, device, versions, training."""
    sections = tuple(f"settings.{name}." for name in TRAINING)
    texts = []
    for name in own.runs.columns.intersection(published.runs.columns, sort=False):
        setting = name.startswith(sections) and name.rpartition(".")[2] not in NOT_SETTINGS
        fact = name in ("data.checksum", "machine.device") or name.startswith("versions.")
        if setting or fact:
            sides = [_distinct(study.runs[name]) for study in (own, published)]
            if sides[0] != sides[1]:
                texts.append(
                    f"{name} ({' or '.join(sides[0])}; published: {' or '.join(sides[1])})"
                )
    return texts


def _distinct(values: pd.Series) -> list[str]:
    """Return the distinct values of a column as text, a checksum by its first digits."""
    return sorted({comparable(value)[:40].strip('"') or "-" for value in values})
