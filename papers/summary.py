"""The norms by task, the highest rates of each, and the list of studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from norm_lab.config.studies import (
    STUDY_FILE,
    question,
    read_study_file,
    study_names,
    study_path,
    tuned_path,
)
from norm_lab.report.text import formatted, markdown
from norm_lab.results.folder import read_folder
from norm_lab.study.comparisons import EXPLORATORY, compare_arms
from norm_lab.study.significance import Verdict
from norm_lab.study.tuning import OUTCOME, read_tuned
from papers.across import across_row, declared_across_studies, seeds_ahead
from papers.findings import (
    DECLARED,
    TASKS,
    Effect,
    effect_of_cell,
    measured,
    read_named,
    with_placement,
)

NORMS, RATES = DECLARED["norms"], DECLARED["rates"]
BASELINE = next(iter(NORMS))
ONE_RATE, EXPLORED = " †", " ‡"
"""The marks of one learning rate for all norms, and of a comparison that was not declared."""
TRAINS = 1.1
"""A norm trains at a rate if its loss there is at most this multiple of its lowest one."""
Declared = Mapping[str, Any]


def norm_table(root: Path) -> str:
    """Return Markdown: a row per norm, a column per task, as LayerNorm and differences to it."""
    results = root / "studies"
    speed = gpu_speed(root / "benchmarks" / "results" / "gpu_updates.csv")
    table = {"norm": [f"`{norm}`" for norm in NORMS]}
    for task in TASKS:
        others = [task_cell(norm, task["cells"].get(norm, {}), results) for norm in list(NORMS)[1:]]
        table[task["title"]] = [baseline_cell(task["baseline"], results), *others]
    table["note"] = [note.format(gpu=speed.get(norm)) for norm, note in NORMS.items()]
    return markdown(pd.DataFrame(table))


def task_cell(norm: str, cell: Declared, results: Path) -> str:
    """Return a difference to LayerNorm, bold if decided, its interval and n; may be empty."""
    if "across" in cell:
        (each,) = declared_across_studies(cell["across"])
        row = across_row(each, results)
        decided, explored, tuned = row["decided"], True, any(map(is_tuned, each.arms))
    elif "study" in cell:
        effect = effect_of_cell(norm, cell)
        row, tuned = measured(results)[effect.key], is_tuned(effect.study)
        decided, explored = row["verdict"] != Verdict.UNDECIDED, row["family"] == EXPLORATORY
    else:
        return str(cell.get("text", ""))
    mean = f"**{row['mean']}**" if decided else row["mean"]
    marks = ("" if tuned else ONE_RATE) + (EXPLORED if decided and explored else "")
    ahead = f"<br>{ahead_text(Effect(**cell['ahead']), results)}" if "ahead" in cell else ""
    return f"{mean}{marks}<br>{row['95 % interval']}<br>n = {row['n']}{ahead}"


def is_tuned(study: str) -> bool:
    """Return whether each arm of a study has a learning rate of its own."""
    return bool(read_study_file(study_path(study)).tuned)


def ahead_text(effect: Effect, results: Path) -> str:
    """Return the mean of a difference and the seeds in which its arm is better, of all."""
    better, seeds = seeds_ahead(effect.study, *effect.key.pair, results)
    mean = measured(results)[effect.key]["mean"]
    return f"{effect.title}: {mean}, better in {better} of {seeds} seeds"


def baseline_cell(name: str, results: Path) -> str:
    """Return the mean of LayerNorm in a study, its standard deviation between seeds, and n."""
    study, arm = read_named(name, results), with_placement(BASELINE)
    row = compare_arms(study.runs, [(arm, arm)])[["mean", "standard_deviation", "n"]]
    mean, deviation, n = formatted(row, study.metric).iloc[0]
    return f"{mean}<br>± {deviation}<br>n = {n}"


def gpu_speed(path: Path) -> dict[str, str]:
    """Return the updates/s of each norm on a GPU over those of fairseq's own, the newest row."""
    rows = pd.read_csv(path, keep_default_na=False, na_values="", dtype={"options": str})
    with_adam = (rows["optimizer"] == "adam") & (rows["stock_optimizer"] == "adam")
    newest = rows[rows["options"].isna() & with_adam].groupby("norm").last(skipna=False)
    return dict(newest["ratio_p50"].map("{:.2f}".format))


def rates_table(results: Path) -> str:
    """Return Markdown: the highest rate at which each norm of some studies trains."""
    rates = {f"highest rate, {task}": highest_rates(name, results) for task, name in RATES.items()}
    norms = list(dict.fromkeys(norm for each in rates.values() for norm in each))
    columns = {title: [each.get(norm, "") for norm in norms] for title, each in rates.items()}
    return markdown(pd.DataFrame({"norm": [f"`{norm}`" for norm in norms], **columns}))


def highest_rates(name: str, results: Path) -> dict[str, str]:
    """Return the highest rate of the trials at which each norm of a study trains.

    ``>=`` marks the highest rate that was tried.
    """
    study = read_named(name, results)
    tuned = read_tuned(study, tuned_path(study_path(name)))
    norms = dict(zip(study.runs["arm"], study.runs["sites.decoder-self"]))
    rates = {}
    for arm, trials in tuned.trials.groupby("arm"):
        losses = trials.groupby("lr")[OUTCOME].mean()
        trained = losses.index[losses <= TRAINS * losses.min()]
        sign = ">= " if trained.max() == losses.index.max() else ""
        rates[norms[arm]] = f"{sign}{trained.max():g}"
    return rates


def studies_table(studies: Path) -> str:
    """Return Markdown: the name of each study with its report, its question, and its runs."""
    rows = []
    for name in study_names():
        folder = studies / name
        page = "README.md" if (folder / "README.md").is_file() else STUDY_FILE
        runs = read_folder(folder)
        diverged = f", {len(runs.failed)} without a score" if runs.failed else ""
        count = f"{len(runs.finished)}{diverged}" if runs.runs else "not run"
        by = read_study_file(folder / STUDY_FILE).superseded
        asked = question(folder / STUDY_FILE) + (f" Superseded by {by}." if by else "")
        rows.append((f"[{name}]({name}/{page})", asked, count))
    return markdown(pd.DataFrame(rows, columns=["study", "question", "runs"]))
