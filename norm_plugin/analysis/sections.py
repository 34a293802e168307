"""What a report shows of a study, section by section: text, a table and figures each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from norm_plugin.analysis import records
from norm_plugin.analysis.comparison import compare_all, findings, remarks
from norm_plugin.analysis.curves import curves_figure
from norm_plugin.analysis.figures import Figure, scores_figure, speed_figure
from norm_plugin.analysis.paired import (
    NO_TRANSLATIONS,
    compare_translations,
    read_references,
)
from norm_plugin.analysis.reaching import least_loss
from norm_plugin.analysis.record_figures import record_figure, records_of
from norm_plugin.analysis.rows import (
    FAILED_HEADER,
    PAIRED_HEADER,
    REACHED_HEADER,
    RUNS_HEADER,
    SPEED_HEADER,
    TABLE_HEADER,
    failed_row,
    failure_cells,
    paired_cells,
    reached_cells,
    run_cells,
    speed_cells,
    table_row,
)
from norm_plugin.analysis.spectrum import study_figure
from norm_plugin.analysis.stat_tokens import stat_tokens_figure
from norm_plugin.analysis.study import Study, common_settings
from norm_plugin.experiments.comparable import span

FIGURES: dict[str, Callable[[Study], Figure | None]] = {
    "scores": lambda study: scores_figure(compare_all(study)),
    "train-loss": partial(curves_figure, subset="train"),
    "valid-loss": partial(curves_figure, subset="valid"),
    "speed": speed_figure,
    **{name: partial(record_figure, name=name) for name in records.FIGURES},
    "spectrum": study_figure,
    "stat-tokens": stat_tokens_figure,
}
"""By name, in the order of the page; None where the study has no data for one."""


@dataclass(frozen=True)
class Table:
    """Cells as text."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Section:
    """A heading with text, a table, remarks on it and figures, each of which may be absent."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    table: Table | None = None
    remarks: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


def sections_of(study: Study, data: Path | None = None, loss: float | None = None) -> list[Section]:
    """What the page shows of a study, in order.

    Args:
        data: the prepared corpus, whose references the tests on translations need.
        loss: the validation loss to reach; None: the least one of the baseline.
    """
    return [
        scores_section(study),
        *([sentences_section(study, data)] if study.baseline.metric.keeps_texts else []),
        training_section(study, loss),
        speed_section(study),
        statistics_section(study),
        *([failures_section(study)] if study.failures else []),
        runs_section(study),
    ]


def _figures(study: Study, *names: str) -> list[Figure]:
    return [figure for name in names if (figure := FIGURES[name](study))]


def scores_section(study: Study) -> Section:
    """Every setting against the baseline, over seeds."""
    rows = compare_all(study)
    table = [table_row(row, study.failures_of(row.setting.name)) for row in rows]
    table += [failed_row(name, study.failures_of(name)) for name in study.failed_settings]
    notes = remarks(rows)
    if study.failures:
        notes.append(
            "A mean is over the seeds that have a result. It says nothing about those that "
            "failed or diverged."
        )
    metric = study.baseline.metric
    labels = "; ".join(study.agreed(lambda run: run["scores"][metric.headline]["label"]))
    score = "The score" if labels.startswith(metric.title) else f"The score, {metric.title},"
    better = "Higher" if metric.higher_is_better else "Lower"
    found = [findings(rows)]
    if study.failed_settings:
        found.append(f"No run has a result: {'; '.join(study.failed_settings)}.")
    how, test = "with Welch's interval", "Welch's"
    if study.baseline.split_by_seed:
        how = "of the same seed, which has the same random split, with Student's interval"
        test = "the paired"
    text = (
        f"{score} is {labels}. {better} is better. Differences are "
        f"to {study.baseline.name} {how} and the p of two two-sided tests over seeds, each then "
        "corrected by Holm for all rows that have one. A difference counts as shown where the "
        "corrected p of the permutation test is below 0.05, and as shown if scores are normally "
        f"distributed where only that of {test} t test is."
    )
    return Section(
        "scores",
        f"Scores against {study.baseline.name}",
        [" ".join(found), text],
        Table(TABLE_HEADER, table),
        notes,
        _figures(study, "scores"),
    )


def sentences_section(study: Study, data: Path | None) -> Section:
    """Every run against the baseline's with the same seed, over sentences."""
    title = "The same models on other sentences"
    text = [
        "These tests hold the trained models of one seed fixed and ask whether the difference "
        "would be there on other sentences of the same kind. They say nothing about other seeds: "
        "two seeds of one norm may differ as clearly.",
    ]
    if data is None:
        text.append("Not tested: the report was made without --data, the prepared corpus.")
        return Section("test-set", title, text)
    rows = compare_translations(study, read_references(study, data))
    tested = [row.scores for row in rows if row.scores]
    text.append(
        "Scores are those of sacrebleu. Both p are corrected by Holm over the rows; a difference "
        "counts as shown where both are below 0.05."
    )
    notes = [f"Tests: {signature}." for signature in sorted({one.signature for one in tested})]
    if any(row.why == NO_TRANSLATIONS for row in rows):
        notes.append(
            "Translations are kept by the score stage; norm_plugin.experiments.keep adds them to "
            "older results."
        )
    table = Table(PAIRED_HEADER, [paired_cells(row) for row in rows])
    return Section("test-set", title, text, table if rows else None, notes)


def training_section(study: Study, loss: float | None) -> Section:
    """Curves, and the time to a validation loss."""
    curves = _figures(study, "train-loss", "valid-loss")
    target = least_loss(study) if loss is None else loss
    if not curves or target is None:
        return Section(
            "curves", "Training", ["Losses over training are not in these results."], figures=curves
        )
    whose = "as given" if loss is not None else "the least one of the baseline, of its worst seed"
    text = (
        f"Time until the validation loss is {target:.3f} or less ({whose}), looked at in each "
        "validation: means over the finished seeds that reach it. Minutes assume that "
        "the updates of a run take equally long."
    )
    table = Table(REACHED_HEADER, [reached_cells(study, name, target) for name in study.names])
    return Section("curves", "Training", [text], table, figures=curves)


def speed_section(study: Study) -> Section:
    """Size, speed and memory beside the score."""
    rows = [speed_cells(setting) for setting in study.settings]
    return Section(
        "speed",
        "Speed and size",
        ["Means over seeds."],
        Table(SPEED_HEADER, rows),
        figures=_figures(study, "speed"),
    )


def statistics_section(study: Study) -> Section:
    """What the norms do during training, where it was recorded."""
    figures = _figures(study, *records.FIGURES, "spectrum", "stat-tokens")
    recorded = sum(len(records_of(setting)) for setting in study.settings)
    text = f"{recorded} of {len(study.runs)} runs have a record (--norm-record)."
    return Section("statistics", "Statistics over training", [text], figures=figures)


def failures_section(study: Study) -> Section:
    """The runs without a result, and why."""
    rows = [failure_cells(failure) for failure in study.failures]
    return Section("failures", "Failed and diverged runs", table=Table(FAILED_HEADER, rows))


def runs_section(study: Study) -> Section:
    """Every run with its commit."""
    rows = [run_cells(setting, run) for setting in study.settings for run in setting.runs]
    return Section("runs", "Runs", table=Table(RUNS_HEADER, rows))


def facts_of(study: Study) -> list[str]:
    """What holds for all runs: data, test set, versions."""
    data = study.runs[0]["data"]
    versions = study.agreed(
        lambda run: ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    )
    pairs = [pairs for run in study.runs if (pairs := run["data"].get("training_pairs"))]
    size = f", {span(pairs)} training examples" if pairs else ""
    checksums = study.agreed(lambda run: run["data"]["checksum"][:16])
    common = [
        f"{key}={value}"
        for key, value in common_settings([*study.settings, *study.failures]).items()
    ]
    sums = f"checksum {checksums[0]}"
    if len(checksums) > 1:
        sums = f"{len(checksums)} random splits with the checksums {', '.join(checksums)}"
    return [
        f"Data: {data['corpus']}{size}, {sums}; scored on {study.runs[0]['split']}.",
        f"Versions: {'; '.join(versions)}.",
        *([f"All runs differ from the recipe in {', '.join(common)}."] if common else []),
    ]
