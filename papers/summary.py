"""The tables of papers/README.md: the norms by task, what they cost, and the papers' claims.

And the list of studies.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from norm_lab.config.studies import STUDY_FILE, read_study_file, study_names, study_path
from norm_lab.report.text import formatted, markdown
from norm_lab.results.folder import read_folder
from norm_lab.study.comparisons import EXPLORATORY, compare_arms
from norm_lab.study.significance import Verdict
from norm_lab.study.tuning import OUTCOME, read_tuned, tuned_path
from papers.findings import DECLARED, TASKS, Task, measured, read_named, with_placement
from papers.verdicts import TITLES, judged

NORMS, RATES = DECLARED["norms"], DECLARED["rates"]
BASELINE = NORMS[0]
ONE_RATE, EXPLORED = " †", " ‡"
"""The marks of one learning rate for all norms, and of a comparison that was not declared."""
TRAINS = 1.1
"""A norm trains at a rate if its loss there is at most this multiple of its lowest one."""


def norm_table(results: Path, count: int | None = None) -> str:
    """Return Markdown: a row per norm, a column per task, as LayerNorm and differences to it.

    Args:
        count: the number of rows; by default, all.
    """
    rows = NORMS[:count]
    table = {"norm": [f"`{norm}`" for norm in rows]}
    for task in TASKS:
        table[task.title] = [
            baseline_cell(task, results) if norm == BASELINE else task_cell(task, norm, results)
            for norm in rows
        ]
    return markdown(pd.DataFrame(table))


def task_cell(task: Task, norm: str, results: Path) -> str:
    """Return a difference to LayerNorm, bold if decided, its interval and n; may be empty."""
    if norm not in task.cells:
        return ""
    effect = task.cells[norm]
    row = measured(results)[effect.key]
    decided = row["verdict"] != Verdict.UNDECIDED
    tuned = read_study_file(study_path(effect.study)).tune is not None
    mean = f"**{row['mean']}**" if decided else row["mean"]
    mean += "" if tuned else ONE_RATE
    mean += EXPLORED if decided and row["family"] == EXPLORATORY else ""
    within = f"<br>within {row['margin']:g}" if row["verdict"] == Verdict.EQUIVALENT else ""
    return f"{mean}<br>{row['95 % interval']}<br>n = {row['n']}{within}"


def baseline_cell(task: Task, results: Path) -> str:
    """Return the mean of LayerNorm, its standard deviation between seeds, and n.

    They are of the last study that the cells of the task name, that with the own rates.
    """
    effect = list(task.cells.values())[-1]
    study, arm = read_named(effect.study, results), with_placement(effect.baseline)
    row = compare_arms(study.runs, [(arm, arm)])[["mean", "standard_deviation", "n"]]
    mean, deviation, n = formatted(row, study.metric).iloc[0]
    return f"{mean}<br>± {deviation}<br>n = {n}"


def costs_table(root: Path) -> str:
    """Return Markdown: the highest rate at which each norm trains, updates/s and memory."""
    table: dict[str, list[str]] = {"norm": [f"`{norm}`" for norm in NORMS]}
    for task, study in RATES.items():
        rates = highest_rates(study, root / "studies")
        table[f"highest rate, {task}"] = [rates.get(norm, "") for norm in NORMS]
    for title, cells in training_costs(root / "benchmarks" / "results").items():
        table[title] = [cells.get(norm, "") for norm in NORMS]
    return markdown(pd.DataFrame(table))


def training_costs(folder: Path) -> dict[str, dict[str, str]]:
    """Return updates/s and memory of each norm with its default options, on a CPU and on a GPU.

    They are ratios to stock fairseq's, but the memory on a GPU; docs/kernels.md has all of them.
    """
    cpu = _last_rows(folder / "training.csv", recipe="iwslt14_de_en", kernels="auto")
    gpu = _last_rows(folder / "gpu_updates.csv", optimizer="adam", stock_optimizer="adam")
    # as in docs/kernels.md: no hundredths if the quartiles are tenths apart
    digits = (cpu["ratio_p75"] - cpu["ratio_p25"] < 0.1) + 1
    speed = {norm: f"{ratio:.{digits[norm]}f}" for norm, ratio in cpu["ratio_p50"].items()}
    return {
        "updates/s, CPU": {str(norm): text for norm, text in speed.items()},
        "updates/s, GPU": dict(gpu["ratio_p50"].map("{:.2f}".format)),
        "memory, CPU": dict(cpu["peak_ratio"].dropna().map("{:.2f}".format)),
        "memory, GPU": dict(gpu["peak_mib"].dropna().map("{:,.0f} MiB".format)),
    }


def _last_rows(path: Path, **wanted: str) -> pd.DataFrame:
    """Return the newest row of each norm with its default options, by norm."""
    rows = pd.read_csv(path, keep_default_na=False, na_values="", dtype={"options": str})
    rows = rows[rows["options"].isna() & (rows[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    return rows.groupby("norm", sort=False).last(skipna=False)


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


def main_claims(results: Path) -> str:
    """Return Markdown: the main claims of the papers as papers/papers.md has them."""
    rows = []
    for paper, what, page in DECLARED["main_claims"]:
        (row,) = [each for each in judged(paper, results) if each["what"] == what]
        says = f"{TITLES[paper]}, {what}: {row['what it says']}"
        rows.append((says, row["measured here"], row["verdict"], f"[page]({page}.md)"))
    columns = ["what the paper says", "what we see", "verdict", ""]
    return markdown(pd.DataFrame(rows, columns=columns))


def studies_table(studies: Path) -> str:
    """Return Markdown: the name of each study with its report, its question, and its runs."""
    rows = []
    for name in study_names():
        folder = studies / name
        page = "README.md" if (folder / "README.md").is_file() else STUDY_FILE
        runs = read_folder(folder)
        diverged = f", {len(runs.failed)} without a score" if runs.failed else ""
        count = f"{len(runs.finished)}{diverged}" if runs.runs else "not run"
        rows.append((f"[{name}]({name}/{page})", question(folder / STUDY_FILE), count))
    return markdown(pd.DataFrame(rows, columns=["study", "question", "runs"]))


def question(path: Path) -> str:
    """Return the first sentence of the comment at the head of a study's file."""
    text = path.read_text("utf-8").partition("\n#\n")[0].partition("\nexperiment:")[0]
    words = " ".join(line.removeprefix("#").strip() for line in text.splitlines())
    sentence = re.match(r".*?(?:\?|(?<! al)\.(?=\s|$))", words)  # "et al." ends none
    return sentence[0] if sentence else words
