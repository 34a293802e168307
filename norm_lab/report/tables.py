"""The tables of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.config.studies import SCORE
from norm_lab.report.text import (
    LEFT,
    distinct,
    escaped,
    formatted,
    markdown,
    outcome_title,
    p_text,
    span,
)
from norm_lab.results.folder import RUN_KEY
from norm_lab.study.comparisons import EQUIVALENCE_BY, describe_arms, split_ratio
from norm_lab.study.power import resolution
from norm_lab.study.reproduction import reproduced
from norm_lab.study.significance import OVERLAPPING, Verdict
from norm_lab.study.study import Study
from norm_lab.study.translations import compare_translations, read_references
from norm_lab.study.tuning import OUTCOME, Tuned, chosen_table, learning_rate_sensitivity
from norm_lab.study.windows import compare_over_text

NO_RESULT = "no run has a result"
SIDES = ("arm", "baseline")
"""The columns with names of arms."""


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        name: the name of its files and of its anchor in the page.
        text: see :func:`formatted`.
        note: a note on this table.
        tests: a note on its tests, which a page has once for all tables.
    """

    name: str
    caption: str
    text: pd.DataFrame
    note: str = ""
    tests: str = ""


def tables_of(
    study: Study,
    data: Path | None = None,
    loss: float | None = None,
    tuned: Tuned | None = None,
    published: Study | None = None,
) -> dict[str, Table]:
    """Return the tables of the page by name, without empty ones.

    Args:
        data: the prepared corpus, for the references of the tests on translations.
        loss: the validation loss for the table of the time to reach it.
        tuned: the trials and the chosen value of each arm, if the arms were tuned.
        published: the published runs of the study, if these are a reproduction.
    """
    metric = study.metric
    made: dict[str, Table] = {}

    def add(
        name: str,
        caption: str,
        data: pd.DataFrame,
        note: str = "",
        outcome: str = SCORE,
        tests: str = "",
        signed: bool = True,
    ) -> None:
        if len(data):
            names = {side: data[side].map(study.shown) for side in SIDES if side in data}
            text = formatted(data.assign(**names), metric, outcome, signed)
            made[name] = Table(name, caption, text, note, tests)

    if not study.is_smoke:
        _add_comparisons(study, add, data, published)
    if loss is not None:
        add(
            "reached",
            f"When the validation loss was {loss:.3f} or lower for the first time, means over the "
            "finished seeds that reach it.",
            reached_table(study, loss),
        )
    add("speed", "Speed and size, means over seeds.", speed_table(study))
    failures = study.failures[["arm", "seed", "state", "stage", "progress", "reason"]]
    add("failures", "Failed and diverged runs.", failures)
    labeled = (study.runs["arm"] != study.runs["id"]).any()
    columns = ["arm", *(["id"] if labeled else []), "seed", "score"]
    runs = study.runs[columns].assign(commit=study.commits)
    placements = {*study.placements.values()}
    if labeled and len(placements) == 1:
        runs["id"] = runs["id"].str.removesuffix(f", {placements.pop()}")
    add("runs", "Every run.", runs.assign(date=study.runs["date"]))
    if tuned is not None:
        add(
            "tuned",
            f"The chosen {tuned.key} of each arm, with the next best one.",
            chosen_table(tuned.trials, tuned.chosen),
            "A curve is flat if the next best value is worse by less than the standard "
            "deviation between seeds.",
            OUTCOME,
        )
        add(
            "sensitivity",
            f"Sensitivity to {tuned.key}.",
            learning_rate_sensitivity(tuned.trials),
            "The mean over the grid of min(loss, loss at the start) minus the least loss (Wortsman "
            "et al. 2023), with its 95 % interval over seeds. The worst loss of any trial is taken "
            "as the loss at the start. An arm that trains at no value has a low sensitivity, too; "
            "see its loss in the previous table.",
            OUTCOME,
        )
    return made


def _add_comparisons(
    study: Study, add: Callable[..., None], data: Path | None, published: Study | None
) -> None:
    """Add the tables of comparisons, of tests and of the seeds needed; see :func:`tables_of`."""
    metric, primary = study.metric, study.comparisons.declared
    declared = " and ".join(dict.fromkeys(primary["declared"]))
    caption = f"Comparisons that the study declares, {declared}."
    note, tests = missing_note(primary, study), test_note(primary)
    add("primary", caption, primary_table(primary), note, tests=tests)
    if published is not None:
        beside = reproduced(study, published)
        is_arm = beside["baseline"] == ""
        add("beside", "Each comparison, in both studies.", beside[~is_arm])
        arms = beside[is_arm].drop(columns=["baseline", "outcome"])
        add("beside-arms", f"Each arm, in both studies: {metric.title}.", arms, signed=False)
    comparisons = study.comparisons.every
    for outcome, of_outcome in comparisons.groupby("outcome", sort=False):
        title = outcome_title(str(outcome), metric)
        title += f", mean over {study.trained} of every run" if outcome == "train_loss" else ""
        add(
            f"comparison-{outcome}".replace("_", "-"),
            f"Every arm against its baseline: {title}.",
            outcome_table(of_outcome, study),
            missing_note(of_outcome, study),
            str(outcome),
            test_note(of_outcome),
        )
    scores = comparisons[comparisons["outcome"] == SCORE]
    needed = ["seeds_paired", "seeds_unpaired"]
    add(
        "power",
        f"Seeds per arm at which a t test shows a difference of {metric.of_interest:g} in "
        f"{metric.title} at the 5 % level with a power of 80 %, from the deviations of each pair.",
        scores[["arm", "baseline", *needed]].dropna(how="all", subset=needed),
    )
    over_all = resolution(scores, metric.of_interest, split_ratio(study.runs))
    add("resolution", "Seeds needed, over all arms.", over_all)
    if metric.has_item_outputs and data is not None:
        sentences = compare_translations(study, read_references(study, data))
        add(
            "sentences",
            "The same trained models on other sentences.",
            sentences[["arm", "seed", "verdict", "difference", "p", "p_holm", "control_p"]],
            f"Tests: {'; '.join(distinct(sentences['signature']))}.",
        )
    over_text = compare_over_text(study)
    one_window = over_text.isna().to_numpy().any()
    add(
        "text",
        f"The same trained models on other text of this kind: every arm minus its baseline, in "
        f"{metric.loss_unit}.",
        over_text,
        "A text of one window has no interval over text." if one_window else "",
        outcome="valid_loss",
    )


def comparisons_csv(study: Study) -> str:
    """Return all comparisons as CSV, the declared ones first."""
    table = study.comparisons.all.drop_duplicates(["arm", "baseline", "outcome"])
    table["by_seed"] = table["by_seed"].map(lambda values: " ".join(map("{:.10g}".format, values)))
    table = table.assign(**{side: table[side].map(study.shown) for side in SIDES})
    return str(table.to_csv(index=False, float_format="%.10g"))


def corrected_p(comparisons: pd.DataFrame) -> pd.Series:
    """Return the corrected p as text, named where the correction is Bonferroni's, not Holm's.

    That is so if equivalence was declared and the verdict is better or worse.
    """
    differs = comparisons["verdict"].isin([Verdict.BETTER, Verdict.WORSE])
    texts = comparisons["p_holm"].map(p_text)
    return texts.mask(comparisons["margin"].notna() & differs, texts + " (Bonferroni)")


COMPARED = ["difference", "difference_low", "difference_high", "p", "p_permutation", "p_holm"]


def primary_table(comparisons: pd.DataFrame) -> pd.DataFrame:
    """Return the shown columns of declared comparisons; n is the number of pairs, if any."""
    pairs = comparisons["by_seed"].map(len)
    n = comparisons["n"].mask(pairs > 0, pairs)
    comparisons = comparisons.assign(n=n, p_holm=corrected_p(comparisons))
    columns = ["arm", "baseline", "verdict", "outcome", "n", *COMPARED]
    columns += [] if comparisons["margin"].isna().all() else ["margin"]
    return comparisons[columns]


def outcome_table(comparisons: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Return the shown columns of :func:`compare_arms`; arms without a result come last.

    Arms that have results, but no value of the outcome, are omitted.
    """
    comparisons = comparisons[comparisons["n"] > 0]
    columns = ["arm", "verdict", "n", "mean", "standard_deviation", "low", "high", *COMPARED]
    own = comparisons["arm"] == comparisons["baseline"]
    baselines = comparisons["baseline"].mask(own, "")
    comparisons = comparisons.assign(baseline=baselines, p_holm=corrected_p(comparisons))
    if comparisons.loc[~own, "baseline"].nunique() > 1:
        columns.insert(columns.index("difference"), "baseline")
    rows = comparisons[columns].to_dict("records")
    none = {"verdict": NO_RESULT, "n": 0, "baseline": ""}
    rows += [{"arm": arm, **none} for arm in study.failed_arms]
    table = study.by_placement(pd.DataFrame(rows, columns=columns))
    if len(study.failures):
        counts = study.failures.groupby(["arm", "state"]).size().reset_index(name="count")
        texts = (counts["count"].astype(str) + " " + counts["state"]).groupby(counts["arm"])
        failed = table["arm"].map(texts.agg(", ".join))
        table.insert(columns.index("n") + 1, "no result", failed.fillna(""))
    return table


def missing_note(comparisons: pd.DataFrame, study: Study) -> str:
    """Return a note on arms that have runs without a value of the outcome; may be empty."""
    parts = []
    for row in comparisons.to_dict("records"):
        seeds = study.runs["seed"][study.runs["arm"] == row["arm"]].nunique()
        if row["n"] < seeds:
            parts.append(f"{study.shown(row['arm'])} ({seeds - row['n']} of {seeds} seeds)")
    if not parts:
        return ""
    return (
        "Runs without a value of this outcome are excluded, and arms without any are neither "
        f"described nor tested: {', '.join(distinct(parts))}."
    )


IN_WORDS = {
    EQUIVALENCE_BY: "two one-sided tests of equivalence within the margin, by ",
    "paired t": "Student's t test of the differences by seed",
    "Welch": "Welch's t test of independent samples",
    OVERLAPPING: ", with the variance that overlapping random splits need (Nadeau and Bengio 2003)",
}
"""The descriptions of the parts of the name of a test."""


def test_note(comparisons: pd.DataFrame, one_table: bool = True) -> str:
    """Return a note on the tests in a table of comparisons, or in several; may be empty."""
    tested = comparisons[comparisons["p"].notna()]
    if tested.empty:
        return ""
    names = [
        "".join(words for part, words in IN_WORDS.items() if part in test)
        for test in tested["test"].unique()
    ]
    differs = tested["verdict"].isin([Verdict.BETTER, Verdict.WORSE])
    beyond = ""
    if (tested["margin"].notna() & differs).any():
        beyond = (
            " Where equivalence was declared and the verdict is better or worse, p is that of the "
            "difference, corrected by Bonferroni's method."
        )
    kind = "exact"
    if not tested["exact"].all():
        kind = "with a fixed sample of the permutations if there are too many"
    others = int((tested["declared"] == "").sum())
    parts = ["all comparisons that the study declares"] if others < len(tested) else []
    if others:
        count = "exploratory comparison" if others == 1 else f"{others} exploratory comparisons"
        parts.append(f"the {count} of this table" if one_table else "the others of its table")
    return (
        f"p is from {' or '.join(names)}. p (permutation) is from the permutation test, {kind}. "
        f"p (Holm) is p corrected over its family, {' or '.join(parts)}. It decides the verdict at "
        f"the 5 % level.{beyond} Intervals are not corrected."
    )


def least_loss(study: Study) -> float | None:
    """Return a validation loss that every seed of the baseline reaches; None without curves.

    It is the maximum over seeds of the lowest loss. The final loss is not suitable: if models
    overfit, it may be higher than at the start.
    """
    losses = study.runs.loc[study.runs["arm"] == study.baseline, "valid_loss"].dropna()
    return None if losses.empty else float(losses.max())


def reached_table(study: Study, loss: float) -> pd.DataFrame:
    """Return the time until the runs of each arm first have a validation loss of at most ``loss``.

    Returns:
        columns ``arm``; ``reaching``, how many runs of how many reach it; ``updates`` and
        ``minutes``, means over these runs, which assume that all updates of a run take equally
        long; and ``least``, the lowest loss of any run.
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
            "minutes": reaching["seconds"].mean(skipna=False) / 60,
            "least": runs.groupby("arm")["valid_loss"].min(),
        },
        index=pd.Index(study.names, name="arm"),
    )
    table["reaching"] += " of " + started.reindex(table.index).astype(str)
    return table.reset_index()


def speed_table(study: Study) -> pd.DataFrame:
    """Return the score, size, speed and memory of each arm: means over seeds."""
    arms = study.runs.groupby("arm", sort=False)

    def mean(column: str) -> pd.Series:
        return arms[column].mean(skipna=False)

    table = pd.DataFrame(
        {
            "score": describe_arms(study.runs, study.arms).set_index("arm")["mean"],
            "parameters": arms["model.parameters"].agg(span),
            "norm_parameters": arms["model.norm_parameters"].agg(span),
            "updates": mean("training.updates"),
            "updates_per_second": mean("training.updates_per_second"),
            "minutes": mean("training.seconds") / 60,
            "peak_memory": mean("training.peak_memory") / 2**20,
        }
    )
    return table.rename_axis("arm").reset_index()


def conclusions(study: Study) -> list[str]:
    """Return a sentence on each declared comparison, or if there is none, on each arm's score."""
    table, metric = study.comparisons.declared, study.metric
    table = study.comparisons.of() if table.empty else table
    return [
        _conclusion(study, row, numbers)
        for row, numbers in zip(
            table.to_dict("records"), formatted(table, metric).to_dict("records"), strict=True
        )
        if row["verdict"] != Verdict.BASELINE
    ]


def _conclusion(study: Study, row: Mapping[str, Any], numbers: Mapping[str, str]) -> str:
    """Return a comparison as a sentence, given its values and their text."""
    arm, baseline = (study.shown(row[side]) for side in SIDES)
    outcome = outcome_title(row["outcome"], study.metric)
    title, _, unit = outcome.partition(", ")
    measured = f"{numbers['difference']} ({numbers['95 % interval of the difference']}) in {title}"
    if unit:
        measured += f", {unit}"
    seeds = len(row["by_seed"]) or row["n"]
    measured += f", {seeds} seed{'s' if seeds != 1 else ''}"
    match row["verdict"]:
        case Verdict.BETTER | Verdict.WORSE:
            said = f"{arm} is {row['verdict']} than {baseline}"
        case Verdict.EQUIVALENT:
            said = f"{arm} and {baseline} are equivalent within {row['margin']:g}"
        case Verdict.UNDECIDED:
            said = f"Between {arm} and {baseline} nothing is decided"
            excludes_0 = row["difference_low"] * row["difference_high"] > 0
            if excludes_0 and math.isnan(row["margin"]):  # so a test alone would have decided
                said += " after correction"
        case _:
            return f"{arm} and {baseline} are not tested in {title}: too few seeds."
    return f"{said}: {measured}."


def table_markdown(table: Table) -> str:
    """Return a table in Markdown, with its caption and its note."""
    align = ["---" if name in LEFT else "---:" for name in table.text]
    text = markdown(table.text.map(escaped).rename(columns=escaped), align)
    return "\n\n".join(filter(None, (escaped(table.caption), text, escaped(table.note))))
