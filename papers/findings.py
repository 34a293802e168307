"""The comparisons behind papers/README.md and its pages: their tests, tables and figures.

``questions.yaml`` has the comparisons of each question. A row has a ``study`` and either
``declared: true``, for all comparisons that the study declares, and with ``also`` the same in other
outcomes; or an ``arm`` or several ``arms``, each minus the ``baseline`` (default: layernorm) in an
``outcome`` (default: score). Names without a placement mean pre-norm. See :class:`Effect`.
``summary.py`` has the tables of the first page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from norm_lab.config.studies import (
    EQUIVALENCE,
    MINUS,
    SCORE,
    read_study_file,
    study_path,
    terms,
)
from norm_lab.report.figure import INK, SMALL, Figure
from norm_lab.report.forest import draw_row
from norm_lab.report.tables import corrected_p
from norm_lab.report.text import NOTHING, formatted, markdown, outcome_title
from norm_lab.study.arms import ARM_COLUMNS, name_arms
from norm_lab.study.comparisons import compare_arms, higher_is_better
from norm_lab.study.significance import Verdict
from norm_lab.study.study import Study, read_study
from norm_plugin.io.files import read_text

HERE = Path(__file__).resolve().parent
TESTED = ["difference", "difference_low", "difference_high", "p_permutation", "p_holm"]
TITLES = ["mean", "95 % interval", "p (permutation)", "p (Holm)"]
"""The columns of a comparison, and their titles."""
SIDES = ("arm", "baseline")
OTHER_HALF = "other half, bits"
"""The title of the lowest validation loss, for texts whose second half has the score."""


# ---- declarations -------------------------------------------------------------------------------


def with_placement(side: str) -> str:
    """Return the full name of an arm, or of a difference of two; pre-norm if it names none."""
    return MINUS.join(name if ", " in name else f"{name}, pre" for name in terms(side))


class Key(NamedTuple):
    """What identifies a comparison: the study, the two arms with their placement, the outcome."""

    study: str
    pair: tuple[str, str]
    outcome: str


class Effect(NamedTuple):
    """A comparison, ``arm`` minus ``baseline``; pre-norm if they name no placement.

    Each may be the difference of two arms, as in a study file.

    Attributes:
        off_scale: it would flatten the figure, so it is only in the table.
        title: what tables and figures call the difference, in place of the names of the arms.
    """

    study: str
    arm: str
    baseline: str = "layernorm"
    outcome: str = SCORE
    off_scale: bool = False
    title: str = ""

    @property
    def key(self) -> Key:
        """The comparison, whatever tables call it."""
        pair = with_placement(self.arm), with_placement(self.baseline)
        return Key(self.study, pair, self.outcome)


def effects_of(row: Mapping[str, Any]) -> Iterator[Effect]:
    """Yield the comparisons of a row of questions.yaml."""
    options = dict(row)
    study = options.pop("study")
    if options.pop("declared", False):
        declared = read_study_file(study_path(study)).primary
        own = [Effect(study, each.arm, each.baseline, each.outcome) for each in declared]
        others = [each._replace(outcome=o) for o in options.pop("also", ()) for each in own]
        yield from dict.fromkeys(own + others)  # a pair may be declared in several outcomes
    else:
        for arm in options.pop("arms", None) or [options.pop("arm")]:
            yield Effect(study, arm, **options)


DECLARED: dict[str, Any] = yaml.safe_load((HERE / "questions.yaml").read_text("utf-8"))
FINDINGS = {
    name: [effect for row in rows for effect in effects_of(row)]
    for name, rows in DECLARED["questions"].items()
}
"""The comparisons that answer a question, by the name of its block and its figure."""
TASKS: list[dict[str, Any]] = DECLARED["tasks"]
"""The columns of the table of norms: see questions.yaml."""


def effect_of_cell(norm: str, row: Mapping[str, Any]) -> Effect:
    """Return the comparison of a cell of the table of norms that names a study."""
    return Effect(**{"arm": norm, **{key: row[key] for key in row if key != "ahead"}})


COMPARISONS = tuple(
    dict.fromkeys(
        each.key
        for group in (
            *FINDINGS.values(),
            *(
                [effect_of_cell(norm, row) for norm, row in task["cells"].items() if "study" in row]
                for task in TASKS
            ),
        )
        for each in group
    )
)
"""All comparisons, each once."""


# ---- tests --------------------------------------------------------------------------------------


@cache
def read_named(study: str, results: Path) -> Study:
    """Return a study with its declarations, from the committed results; read once for all tables.

    The arms have their own names, not the labels of the study's file.
    """
    file = read_study_file(study_path(study))
    return read_study([results / study], file=file)


def arm_labels(study: str, results: Path) -> dict[str, str]:
    """Return the arms that have a label in the study's file, with their labels."""
    read, file = read_named(study, results), read_study_file(study_path(study))
    runs, failures = (table[ARM_COLUMNS].copy() for table in (read.runs, read.failures))
    name_arms((runs, failures), {}, read.vary, file.labels)
    arms = dict(zip(runs["id"], runs["arm"]))
    return {arm: label for arm, label in arms.items() if label != arm}


def compare_pairs(study: Study, outcome: str, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return :func:`compare_arms` of what a study declares, of its report's pairs, and of others.

    p is corrected within a family: the declared pairs, also by an outcome that the study does not
    name; or all others. The columns TITLES have the numbers as text; ``mean`` is that of the
    difference.
    """
    declared = [
        (each.arm, each.baseline)
        for each in study.primary
        if each.outcome == outcome or each.test != EQUIVALENCE
    ]
    tests = compare_arms(study.runs, declared, outcome, study.primary)
    others = [
        pair
        for pair in dict.fromkeys((*study.pairs, *pairs))
        if pair not in set(zip(tests["arm"], tests["baseline"])) and set(pair) <= set(study.arms)
    ]
    tests = pd.concat([tests, compare_arms(study.runs, others, outcome)], ignore_index=True)
    texts = formatted(tests[TESTED].assign(p_holm=corrected_p(tests)), study.metric, outcome)
    texts.columns = TITLES
    higher = higher_is_better(study.runs, outcome)
    return tests.drop(columns="mean").join(texts).assign(higher_is_better=higher)


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

    See :func:`compare_pairs`.

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
    tests = compare_pairs(study, outcome, [key.pair for key in keys]).assign(
        corpus=read_study_file(study_path(name)).setting,
        outcome_title=outcome_title(outcome, study.metric),
    )
    tests["n"] = tests["by_seed"].map(lambda values: len(values) or "-")
    of_pair = {(row["arm"], row["baseline"]): row for row in tests.to_dict("records")}
    return [
        of_pair[key.pair]
        | {f"{side}_label": labels.get(arm, "") for side, arm in zip(SIDES, key.pair)}
        | {OTHER_HALF: half}
        for key, half in zip(keys, validation_losses(study, keys, outcome))
    ]


def validation_losses(study: Study, keys: Sequence[Key], outcome: str) -> list[str]:
    """Return the differences in the lowest validation loss, if another half of it has the score."""
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
                        "titles": [f"{value:+.3g}" for value in row["by_seed"]],
                        "filled": row["verdict"] != Verdict.UNDECIDED,
                    },
                )
            axes.axvline(0, color=INK, linewidth=0.8, alpha=0.6)
            axes.set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(labelsize=SMALL)
            better = "right" if rows["higher_is_better"].iloc[0] else "left"
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


def stale_figures(folder: Path, results: Path) -> dict[Path, str]:
    """Return the figures in a folder whose table has changed, as they should be."""
    return {
        path: figure_text(name, results)
        for name in FINDINGS
        for path in [folder / f"{name}.svg"]
        if not path.is_file() or escape(finding_table(name, results)) not in read_text(path)
    }
