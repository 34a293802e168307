#!/usr/bin/env python3
"""Draw the figures of papers/ and papers/theory.md from the committed results.

    python -m papers.findings

python -m papers writes the tables of the same comparisons.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from norm_lab.config.studies import EQUIVALENCE, SCORE, read_study_file, study_path
from norm_lab.paths import STUDIES
from norm_lab.report.figure import INK, SMALL, Figure
from norm_lab.report.forest import draw_row
from norm_lab.report.tables import corrected_p, table_markdown, tables_of
from norm_lab.report.text import NOTHING, formatted, markdown, outcome_title
from norm_lab.study.comparisons import compare_arms, higher_is_better
from norm_lab.study.significance import Verdict
from norm_lab.study.study import Study, read_study
from norm_plugin.io.command_line import run_command
from norm_plugin.io.files import write_text
from papers.questions import COMPARISONS, FINDINGS, Effect, Key
from papers.questions import with_placement as with_placement
from papers.theory import CLAIMS
from papers.theory.command import draw

HERE = Path(__file__).resolve().parent
TESTED = ["difference", "difference_low", "difference_high", "p_permutation", "p_holm"]
TITLES = ["mean", "95 % interval", "p (permutation)", "p (Holm)"]
"""The columns of a comparison, and their titles."""
SIDES = ("arm", "baseline")
OTHER_HALF = "other half, bits"
"""The title of the lowest validation loss, for texts whose second half has the score."""


@cache
def read_named(study: str, results: Path, declared_labels: bool = False) -> Study:
    """Return a study with its declarations, from the committed results; read once for all tables.

    Args:
        declared_labels: name the arms by the labels of the study's file.
    """
    file = read_study_file(study_path(study))
    return read_study([results / study], file=file, declared_labels=declared_labels)


def arm_labels(study: str, results: Path) -> dict[str, str]:
    """Return the arms that have a label in the study's file, with their labels."""
    runs = read_named(study, results, declared_labels=True).runs
    arms = dict(zip(runs["id"], runs["arm"]))
    return {arm: label for arm, label in arms.items() if label != arm}


def declared_table(study: str, results: Path) -> str:
    """Return Markdown: what a study declares, with its results, as in its report."""
    return table_markdown(tables_of(read_named(study, results, declared_labels=True))["primary"])


def declared_tests(study: Study, outcome: str) -> pd.DataFrame:
    """Return the declared pairs as one family, also by an outcome that the study does not name."""
    pairs = [
        (each.arm, each.baseline)
        for each in study.primary
        if each.outcome == outcome or each.test != EQUIVALENCE
    ]
    return compare_arms(study.runs, pairs, outcome, study.primary)


def finding_table(name: str, results: Path) -> str:
    """Return Markdown: one row per comparison of a finding, as in :func:`measured`.

    The verdict on a comparison that was not declared before its runs is marked as exploratory.
    """
    rows = rows_of(FINDINGS[name], results)
    shown = ["difference_text", "corpus", "outcome_title", "n", *TITLES, "verdict"]
    if (rows[OTHER_HALF] != NOTHING).any():
        shown.insert(-3, OTHER_HALF)
    table = rows[shown]
    table = table.rename(columns={"difference_text": "difference", "outcome_title": "outcome"})
    suggested = (rows["family"] == "exploratory") & (rows["verdict"] != Verdict.UNDECIDED)
    table["verdict"] = rows["verdict"].mask(suggested, rows["verdict"] + ", exploratory")
    table["declared"] = rows["family"].map({"primary": "before", "exploratory": "-"})
    return markdown(table)


def finding_block(name: str, results: Path) -> str:
    """Return Markdown: the figure of a finding, what it omits, and its table."""
    figure = f"![Differences and their 95 % intervals]({name}.svg)"
    rows = rows_of(FINDINGS[name], results)
    missing = rows.loc[rows["off_scale"], "difference_text"].tolist()
    note = f"Not in the figure, because off its scale: {'; '.join(missing)}.\n\n" if missing else ""
    return f"{figure}\n\n{note}{finding_table(name, results)}"


def rows_of(effects: Sequence[Effect], results: Path) -> pd.DataFrame:
    """Return what :func:`measured` has of these effects, in their order."""
    rows = [measured(results)[each.key] | each._asdict() for each in effects]
    for row in rows:
        row["difference_text"] = _difference(row)
    return pd.DataFrame(rows)


@cache
def measured(results: Path) -> dict[Key, dict[str, Any]]:
    """Return each comparison of papers/README.md and its pages, with the columns of its tables.

    p is corrected within a family: the declared pairs of an outcome, or all others of the study's
    report and of these pages.

    Raises:
        KeyError: an arm has no runs.
    """
    families: dict[tuple[str, str], list[Key]] = {}
    for key in COMPARISONS:
        families.setdefault((key.study, key.outcome), []).append(key)
    return {
        key: row
        for (study, outcome), keys in families.items()
        for key, row in zip(keys, measure(study, outcome, keys, results))
    }


def measure(name: str, outcome: str, keys: Sequence[Key], results: Path) -> list[dict[str, Any]]:
    """Return the comparisons of one study in one outcome; see :func:`measured`."""
    study = read_named(name, results)
    labels = arm_labels(name, results)
    tests = declared_tests(study, outcome)
    declared = set(zip(tests["arm"], tests["baseline"]))
    others = [
        pair
        for pair in (*study.pairs, *(key.pair for key in keys))
        if pair not in declared and set(pair) <= set(study.arms)
    ]
    tests = pd.concat([tests, compare_arms(study.runs, others, outcome)], ignore_index=True)
    texts = formatted(tests[TESTED].assign(p_holm=corrected_p(tests)), study.metric, outcome)
    texts.columns = TITLES
    tests = (
        tests.rename(columns={"mean": "arm_mean"})
        .join(texts)
        .assign(
            better="right" if higher_is_better(study.runs, outcome) else "left",
            corpus=read_study_file(study_path(name)).setting,
            n=tests["by_seed"].map(lambda values: len(values) or "-"),
            outcome_title=outcome_title(outcome, study.metric),
        )
    )
    of_pair = {(row["arm"], row["baseline"]): row for row in tests.to_dict("records")}
    return [
        of_pair[key.pair]
        | {f"{side}_label": labels.get(arm, "") for side, arm in zip(SIDES, key.pair)}
        | {OTHER_HALF: half}
        for key, half in zip(keys, other_half(study, keys, outcome))
    ]


def other_half(study: Study, keys: Sequence[Key], outcome: str) -> list[str]:
    """Return the differences in the lowest validation loss, if it is of the half without score."""
    if outcome != SCORE or not study.runs["data.corpus"].iloc[0].endswith("_halves"):
        return [NOTHING] * len(keys)
    tests = compare_arms(study.runs, [key.pair for key in keys], "valid_loss")
    losses = formatted(tests[TESTED[:3]], study.metric, "valid_loss")
    return [f"{mean} ({interval})" for mean, interval in losses.itertuples(index=False)]


def finding_figure(name: str, results: Path) -> Figure:
    """Return a forest plot: a panel per outcome, a row per comparison, a dot per seed.

    A mark is filled if the verdict is not undecided.
    """
    rows = rows_of(FINDINGS[name], results)
    data = rows[~rows["off_scale"]]
    panels = list(data.groupby("outcome_title", sort=False))

    def plot(grid: Any) -> None:
        for axes, (title, rows) in zip(grid[:, 0], panels):
            for place, row in enumerate(rows.to_dict("records")):
                draw_row(
                    axes,
                    place,
                    {
                        "mean": row["difference"],
                        "low": row["difference_low"],
                        "high": row["difference_high"],
                        "values": row["by_seed"],
                        "filled": row["verdict"] != Verdict.UNDECIDED,
                    },
                )
            axes.axvline(0, color=INK, linewidth=0.8, alpha=0.6)
            axes.set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(labelsize=SMALL)
            better = rows["better"].iloc[0]
            # right: a title that is wider than the axes is not cut there
            axes.set_xlabel(
                f"difference in {title}\n(better: {better})", fontsize=SMALL, loc="right"
            )
            axes.locator_params(axis="x", nbins=6)

    sizes = [len(rows) for _, rows in panels]
    height = sum(0.85 + 0.38 * size for size in sizes)
    ratios = {"height_ratios": [size + 1 for size in sizes]}
    return Figure(name, "", data, plot, height, (len(sizes), 1), ratios)


def _difference(row: Mapping[str, Any]) -> str:
    """Return Markdown: the title of a row, or the labels or names of its arms."""
    arm, baseline = (row[f"{side}_label"] or f"`{row[side]}`" for side in SIDES)
    return row["title"] or f"{arm} minus {baseline}"


def _label(row: Mapping[str, Any]) -> str:
    """Return the two lines beside a row of a figure; what both arms share is on the second."""
    arm, baseline = (row[f"{side}_label"] or row[side] for side in SIDES)
    first, second = row["title"] or f"{arm} minus {baseline}", row["corpus"]
    (ours, comma, end), (theirs, _, other_end) = arm.rpartition(", "), baseline.rpartition(", ")
    if comma and row["arm_label"] and end == other_end:
        first, second = f"{ours} minus {theirs}", f"{second}, {end}"
    return f"{first}\n{second}, n = {len(row['by_seed'])}"


def figure_text(name: str, results: Path) -> str:
    """Return an SVG file whose description is the table, so that a stale figure is found."""
    svg = finding_figure(name, results).standalone
    opening, end, rest = svg.partition(">")
    return f"{opening}{end}\n<desc>\n{escape(finding_table(name, results))}\n</desc>{rest}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.findings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    for name in FINDINGS:
        write_text(HERE / f"{name}.svg", figure_text(name, STUDIES))
    for claim in CLAIMS:
        draw(claim, HERE / "data" / "theory")
    return 0


if __name__ == "__main__":
    run_command(main)
