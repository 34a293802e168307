"""The tables of a report, and their format.

A table is a data frame of numbers, with columns as in :data:`COLUMNS`. :func:`formatted` turns it
into text for HTML, Markdown and LaTeX.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis.stats import EQUIVALENCE_BY, LEVEL, half_interval
from norm_plugin.analysis.study import (
    TRAINING,
    Study,
    check_alike,
    check_same_data,
    check_same_sources,
    check_settings_alike,
)
from norm_plugin.experiments.collect import short_commit
from norm_plugin.experiments.metrics import Metric, find_metric
from norm_plugin.experiments.results import RUN_KEY, read_results
from norm_plugin.experiments.studies import LOSSES, SCORE

NOTHING, UNKNOWN = "-", "unknown"
NO_RESULT = "no run has a result"
NOT_COMPUTED = "not computed"
SAME_SPEED = 1.1
"""On an idle machine, the speeds of two seeds of an arm differ by less than this factor."""
LOSS_DIGITS = 3
Row = Mapping[str, Any]


Text = Callable[[Any, Row, Metric], str]
"""Formats a value, given its row and the metric."""


def p_text(value: float | None) -> str:
    """p with three decimal places, or more if rounding would hide on which side of 5 % it is."""
    if value is None or pd.isna(value):
        return NOTHING
    if value < 0.0005:
        return "<0.001"
    text = f"{value:.3f}"
    return f"{value:.6f}".rstrip("0") if float(text) == LEVEL else text


def in_units(value: float, row: Row, metric: Metric, sign: str = "") -> str:
    """A value in the unit of the row's outcome; a difference with ``sign="+"``."""
    if pd.isna(value):
        return NOTHING
    if row["outcome"] in LOSSES:
        return f"{value:{sign}.{LOSS_DIGITS}f}"
    return metric.text(value, sign)


def _interval(high: str, sign: str = "") -> Text:
    """Formats the interval from a value to that in the column ``high``."""

    def text(low: float, row: Row, metric: Metric) -> str:
        ends = [in_units(end, row, metric, sign) for end in (low, row[high])]
        return NOTHING if NOTHING in ends else " to ".join(ends)

    return text


def _as(form: str, missing: str = NOTHING, unit: float = 1) -> Text:
    """Formats a number with ``form``, divided by ``unit``; text is unchanged."""

    def text(value: Any, row: Row, metric: Metric) -> str:
        if isinstance(value, str):
            return value or missing
        return missing if pd.isna(value) else form.format(value / unit)

    return text


def _plain(value: Any, row: Row, metric: Metric) -> str:
    """A value as text; an integer without a decimal point, also if pandas made it a float."""
    if not isinstance(value, str) and pd.isna(value):
        return NOTHING
    whole = isinstance(value, float) and value.is_integer()
    return f"{value:.0f}" if whole else str(value) or NOTHING


def _signed(value: float, row: Row, metric: Metric) -> str:
    return in_units(value, row, metric, "+")


def _p(value: float, row: Row, metric: Metric) -> str:
    return p_text(value)


COLUMNS: dict[str, tuple[str, Text]] = {
    "arm": ("arm", _as("{}")),
    "baseline": ("baseline", _plain),
    "outcome": ("outcome", lambda value, row, metric: outcome_title(value, metric)),
    "n": ("n", _as("{:g}")),
    "mean": ("mean", in_units),
    "standard_deviation": ("standard deviation", in_units),
    "low": ("95 % interval", _interval("high")),
    "difference": ("difference", _signed),
    "difference_low": ("95 % interval of the difference", _interval("difference_high", "+")),
    "p": ("p", _p),
    "p_permutation": ("p (permutation)", _p),
    "p_holm": ("p (Holm)", _p),
    "control_p": ("p between two of its seeds", _p),
    "seeds_paired": ("seeds, paired", _as("{:,.0f}")),
    "seeds_unpaired": ("seeds, unpaired", _as("{:,.0f}")),
    "lr": ("chosen", _as("{:g}")),
    "tuned": ("validation loss", in_units),
    "next_lr": ("next best", _as("{:g}")),
    "behind": ("behind by", in_units),
    "spread": ("standard deviation between seeds", in_units),
    "sensitivity": ("sensitivity", in_units),
    "sensitivity_low": ("95 % interval", _interval("sensitivity_high")),
    "from_lr": ("from", _as("{:g}")),
    "to_lr": ("to", _as("{:g}")),
    "score": ("score", in_units),
    "reaching": ("seeds that reach it", _as("{:,.0f}")),
    "updates": ("updates", _as("{:,.0f}", "not reached")),
    "seconds": ("minutes", _as("{:.1f}", UNKNOWN, 60)),
    "least": ("least loss", _as("{:.3f}", UNKNOWN)),
    "norm_parameters": ("of norms", _as("{}")),
    "updates_per_second": ("updates/s", _as("{:.2f}", UNKNOWN)),
    "peak_memory": ("peak host memory, MiB", _as("{:,.0f}", UNKNOWN, 2**20)),
    "value": ("value", _as("{:.3g}", "none is enough")),
    "stage": ("in", _as("{}")),
    "progress": ("it had come to", _as("{}")),
}
"""The title and format of each column. Other columns keep their name and values.

The upper end of an interval is shown with the lower one.
"""
SHOWN_WITH_ANOTHER = {"high", "difference_high", "sensitivity_high"}
LEFT = {"arm", "baseline", "verdict", "outcome", "quantity", "note", "state", "reason", "commit"}
"""The titles of columns of text; the others are aligned to the right."""


def formatted(table: pd.DataFrame, metric: Metric, outcome: str = SCORE) -> pd.DataFrame:
    """A table as text, with the titles of its columns.

    Args:
        outcome: the outcome of all rows, for a table without a column ``outcome``.
    """
    rows = [{"outcome": outcome, **row} for row in table.to_dict("records")]
    shown = {}
    for name in table.columns.difference(SHOWN_WITH_ANOTHER, sort=False):
        title, text = COLUMNS.get(name, (str(name).replace("_", " "), _plain))
        shown[title] = [text(row[name], row, metric) for row in rows]
    return pd.DataFrame(shown)


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        name: the name of its files and of its anchor in the page.
        caption: the caption.
        data: the numbers.
        metric: the metric, for the unit of scores.
        note: a note on its tests.
        outcome: the outcome of all rows, if no column names it.
    """

    name: str
    caption: str
    data: pd.DataFrame
    metric: Metric
    note: str = ""
    outcome: str = SCORE

    @cached_property
    def text(self) -> pd.DataFrame:
        """See :func:`formatted`."""
        return formatted(self.data, self.metric, self.outcome)


def outcome_title(outcome: str, metric: Metric) -> str:
    """The title of an outcome: that of the metric for ``score``, a loss with its unit."""
    titles = {
        "score": metric.title,
        "valid_loss": f"least validation loss, {metric.loss_unit}",
        "train_loss": f"final training loss, {metric.loss_unit}",
    }
    return titles.get(outcome, metric.columns.get(outcome, outcome))


COMPARED = ["difference", "difference_low", "difference_high", "p", "p_permutation", "p_holm"]
DESCRIBED = ["n", "mean", "standard_deviation", "low", "high"]
POWER = ["seeds_paired", "seeds_unpaired"]
SENTENCES = ["arm", "seed", "verdict", "difference", "p", "p_holm", "control_p"]
FAILURES = ["arm", "seed", "state", "stage", "progress", "reason"]


def primary_table(comparisons: pd.DataFrame) -> pd.DataFrame:
    """The table of the declared comparisons; n is the number of pairs where they are paired.

    Args:
        comparisons: the table of :func:`~norm_plugin.analysis.stats.compare_primary`.
    """
    pairs = comparisons["by_seed"].map(len)
    comparisons = comparisons.assign(n=comparisons["n"].mask(pairs > 0, pairs))
    columns = ["arm", "baseline", "verdict", "outcome", "n", *COMPARED]
    columns += [] if comparisons["margin"].isna().all() else ["margin"]
    return comparisons[columns]


def placements_of(study: Study) -> dict[str, str]:
    """The placement of each arm; the baseline comes first, arms without a result last."""
    both = pd.concat([study.runs, study.failures])
    return dict(zip(both["arm"], both["placement"]))


def by_placement(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Sort a table with a column ``arm`` by placement, that of the baseline first."""
    placements = placements_of(study)
    order = list(dict.fromkeys(placements.values()))
    place = table["arm"].map(placements).map(order.index)
    return table.loc[place.sort_values(kind="stable").index]


def outcome_table(comparisons: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The comparison of every arm with its baseline in one outcome; arms without a result last.

    Args:
        comparisons: the table of :func:`~norm_plugin.analysis.stats.compare_arms`.
    """
    columns = ["arm", "verdict", *DESCRIBED, *COMPARED]
    own = comparisons["arm"] == comparisons["baseline"]
    comparisons = comparisons.assign(baseline=comparisons["baseline"].mask(own, ""))
    if len(set(comparisons.loc[~own, "baseline"])) > 1:
        columns.insert(columns.index("difference"), "baseline")
    rows = comparisons[columns].to_dict("records")
    none = {"verdict": NO_RESULT, "n": 0, "baseline": ""}
    rows += [{"arm": arm, **none} for arm in study.failed_arms]
    table = by_placement(pd.DataFrame(rows, columns=columns), study)
    if len(study.failures):
        counts = study.failures.groupby(["arm", "state"]).size().reset_index(name="count")
        texts = (counts["count"].astype(str) + " " + counts["state"]).groupby(counts["arm"])
        failed = table["arm"].map(texts.agg(", ".join))
        table.insert(columns.index("n") + 1, "no result", failed.fillna(""))
    return table


TESTS = {
    "paired t": "Student's t test of the differences by seed",
    "paired t, overlapping splits": "Student's t test of the differences by seed, with the "
    "variance that overlapping random splits need (Nadeau and Bengio 2003)",
    "Welch": "Welch's t test of independent samples",
}
"""The tests in words."""
EQUIVALENCE_IN_WORDS = "two one-sided tests of equivalence within the margin, by "


def test_note(comparisons: pd.DataFrame) -> str:
    """A note on the tests in a table of comparisons; empty if nothing is tested."""
    tested = comparisons[comparisons["p"].notna()]
    if tested.empty:
        return ""
    names = []
    for test in dict.fromkeys(tested["test"]):
        *equivalence, name = test.split(EQUIVALENCE_BY)
        names.append("".join(EQUIVALENCE_IN_WORDS for _ in equivalence) + TESTS[name])
    kind = "exact"
    if not tested["exact"].all():
        kind = "of a fixed sample of the permutations where there are too many"
    others = int((tested["declared"] == "").sum())
    parts = ["all comparisons that the study declares"] if others < len(tested) else []
    parts += [f"the {others} exploratory comparisons of this table"] if others else []
    return (
        f"p is of {' or '.join(names)}; p (permutation) of the permutation test, {kind}. p (Holm) "
        f"is p corrected over its family, {' or '.join(parts)}. The verdict follows it at the 5 % "
        "level. Intervals are not corrected."
    )


def least_loss(study: Study) -> float | None:
    """A validation loss that every seed of the baseline reaches; None without curves.

    It is the maximum over seeds of the lowest loss. The final loss is not suitable: if models
    overfit, it may be higher than at the start.
    """
    losses = study.runs.loc[study.runs["arm"] == study.baseline, "valid_loss"].dropna()
    return None if losses.empty else float(losses.max())


def reached_table(study: Study, loss: float) -> pd.DataFrame:
    """The time until the runs of each arm first have a validation loss of at most ``loss``.

    Returns:
        columns ``arm``; ``reaching``, the number of runs that reach it, of how many; ``updates``
        and ``seconds``, means over these runs, where all updates of a run count as equally long;
        and ``least``, the lowest loss of any run.
    """
    curves = study.curves[study.curves["subset"] == "valid"].dropna(subset="loss")
    first = curves[curves["loss"] <= loss].drop_duplicates(RUN_KEY)
    runs = study.runs.merge(first[[*RUN_KEY, "updates"]], how="left", on=RUN_KEY)
    runs["seconds"] = runs["training.seconds"] * runs["updates"] / runs["training.updates"]
    reaching = runs.dropna(subset="updates").groupby("arm")
    started = pd.concat([runs["arm"], study.failures["arm"]]).value_counts()
    table = pd.DataFrame(
        {
            "reaching": reaching.size().reindex(study.names, fill_value=0).astype(str),
            "updates": reaching["updates"].mean(),
            "seconds": reaching["seconds"].agg(_mean_of_all),
            "least": runs.groupby("arm")["valid_loss"].min(),
        },
        index=pd.Index(study.names, name="arm"),
    )
    table["reaching"] += " of " + started.reindex(table.index).astype(str)
    return table.reset_index()


def _mean_of_all(values: pd.Series) -> float:
    """The mean; NaN if a value is missing."""
    return float(values.mean(skipna=False))


def speed_table(study: Study) -> pd.DataFrame:
    """The score, size, speed and memory of each arm: means over seeds."""
    table = study.runs.groupby("arm", sort=False).agg(
        score=("score", _mean_of_all),
        parameters=("model.parameters", span),
        norm_parameters=("model.norm_parameters", span),
        updates=("training.updates", _mean_of_all),
        updates_per_second=("training.updates_per_second", _mean_of_all),
        seconds=("training.seconds", _mean_of_all),
        peak_memory=("training.peak_memory", _mean_of_all),
    )
    return table.reset_index()


def speed_spread(runs: pd.DataFrame) -> float:
    """The largest factor between the speeds of two seeds of an arm; 1 if unknown.

    Above :data:`SAME_SPEED`, the runs shared the machine with other work, so times are not
    comparable.
    """
    speeds = runs.groupby("arm")["training.updates_per_second"]
    factor = (speeds.max() / speeds.min()).max()
    return 1.0 if pd.isna(factor) else float(factor)


def commits(runs: pd.DataFrame) -> list[str]:
    """The commit that scored each run, as text."""
    states = runs[["commit", "dirty"]].astype(object)
    return [short_commit(state) for state in states.where(states.notna(), None).to_dict("records")]


# --- in Markdown -------------------------------------------------------------------------------


def span(counts: Iterable[int]) -> str:
    """``1,000``, or ``998 to 1,000`` if counts differ, as on random splits of a corpus."""
    distinct = sorted(set(counts))
    return " to ".join(f"{count:,}" for count in dict.fromkeys((distinct[0], distinct[-1])))


def markdown(table: pd.DataFrame, align: Sequence[str] = ()) -> str:
    """A table in Markdown.

    Args:
        align: ``---`` or ``---:`` for each column (default: left).
    """
    rows = [list(table.columns), *table.itertuples(index=False)]
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, list(align) or ["---"] * len(table.columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def score_table(runs: pd.DataFrame) -> str:
    """The scores of an experiment in Markdown, one row per norm, with notes.

    Raises CommandError for runs that cannot be compared: different data, different splits, or
    seeds of one norm with different settings.
    """
    check_same_data(runs)
    check_alike(runs, "split", ["split"])
    metric = find_metric(runs["metric"].iloc[0])
    norms = runs.groupby("norm", sort=False)
    table = pd.DataFrame([_row(str(norm), of_norm, metric) for norm, of_norm in norms])
    lines = [markdown(table, ["---", *["---:"] * (len(table.columns) - 1)]), ""]
    lines += [_meaning(runs, kind, title) for kind, title in metric.columns.items()]
    if norms.size().max() > 1:
        lines += [
            f"Several seeds: mean; the interval is Student's t for the mean of {metric.title}."
        ]
    notes = [name for name in runs if name.startswith("scores.") and name.endswith(".note")]
    for run in runs.to_dict("records"):
        lines += [
            f"Note on {run['norm']}, seed {run['seed']}: {run[name]}."
            for name in notes
            if isinstance(run[name], str)
        ]
    return "\n".join(lines)


def _meaning(runs: pd.DataFrame, kind: str, title: str) -> str:
    """A note on a column of scores, with their labels or signatures."""
    if f"scores.{kind}.score" not in runs:
        return f"{title}: {NOT_COMPUTED} when these runs were scored."
    if f"scores.{kind}.signature" in runs:
        signatures = distinct(runs[f"scores.{kind}.signature"])
        return f"{title}: {', '.join(f'`{signature}`' for signature in signatures)}."
    labels = "; ".join(distinct(runs[f"scores.{kind}.label"]))
    return f"{labels}." if labels.startswith(title) else f"{title}: {labels}."


def _row(norm: str, runs: pd.DataFrame, metric: Metric) -> dict[str, str]:
    check_same_sources(runs)
    check_settings_alike(runs, ("model", *TRAINING))
    values = runs["score"].tolist()
    seeds = ", ".join(map(str, runs["seed"]))
    first, *others = metric.columns.items()
    single = len(runs) == 1
    speeds = runs.get("training.updates_per_second")
    unknown = speeds is None or speeds.isna().any()
    return {
        "Norm": norm,
        "Seeds": seeds if single else f"{seeds} (n = {len(runs)})",
        "Parameters": span(runs["model.parameters"]),
        first[1]: metric.text(statistics.mean(values)),
        "95 % interval": "one seed" if single else f"± {metric.text(half_interval(values))}",
        **{title: _mean(runs, f"scores.{kind}.score", metric) for kind, title in others},
        "updates/s": "unknown" if unknown else f"{statistics.mean(speeds.tolist()):.2f}",
    }


def _mean(runs: pd.DataFrame, column: str, metric: Metric) -> str:
    """The mean of a kind of score, which old results may lack."""
    if column not in runs or runs[column].isna().any():
        return NOT_COMPUTED
    return metric.text(statistics.mean(runs[column].tolist()))


def distinct(values: Iterable[object]) -> list[str]:
    """The distinct values as sorted text, without missing ones."""
    return sorted({str(value) for value in values if not pd.isna(value)})


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin table",
        description="Print the table of an experiment in Markdown.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results/<experiment>")
    args = parser.parse_args(argv)
    print(score_table(read_results(args.folder)))
    return 0
