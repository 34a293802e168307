"""The rows of docs/papers.md: what a paper states, what was measured here, and the verdict.

``paper_rows.yaml`` has the rows of each paper. A row has ``what`` (a figure, a table, a lemma),
``says`` in our words, and one of

    verdict     one of VERDICTS, if nothing is measured
    compare     two arms of a study: {study, arm, baseline, outcome, claim, margin, setting}, where
                ``setting: other`` says that the statement does not cover the setting of the study
    theory      rows of a claim of docs/theory.md: {claim, where, n}
    recorded    a statistic over training at the first norm: {folder, figure, value, norm, claim}.
                It is the change over training, or with ``minus: [value, norm]`` a difference of two
                at the end, in ``part``, or with ``part: outliers`` in the largest over the median
    spectrum    the mean singular value of the embedding over its largest: {study, arm, baseline,
                claim, margin}
    example     {name, arm, baseline, claim}

``ours`` says in which setting, with links. Numbers, intervals and verdicts are computed: a decided
difference is higher or lower, as the claim says or not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from example_runs import RESULTS as EXAMPLES
from example_runs import SCORES, TEST_TO_TRAIN, read_runs
from findings import declared_tests, read_named, with_placement
from norm_lab.config.studies import BEFORE, SCORE
from norm_lab.report.records import statistics_of
from norm_lab.report.text import formatted, markdown
from norm_lab.study.comparisons import compare_arms, higher_is_better
from norm_lab.study.significance import Verdict, compare, describe
from norm_lab.study.study import Study, read_study
from norm_lab.theory import CLAIMS
from norm_lab.theory.claim import INTERVAL, finite_cases
from norm_lab.theory.command import read_made, read_measurements
from norm_plugin.io.command_line import CommandError
from papers import first_norm_tenths

FILE = Path(__file__).with_name("paper_rows.yaml")
REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NOT_SEEN, PARTLY, NOT_RUN = "not reproduced", "partly", "not run"
DIFFERS = "differs here"
VERDICTS = {
    REPRODUCED: "the stated effect is decided, or the stated equation or bound holds",
    CONTRADICTED: "the opposite effect is decided, or the stated equation or bound fails",
    DIFFERS: "the opposite effect is decided, in a setting that the statement does not cover",
    NOT_SEEN: "the interval lies within the margin of the row, which excludes a larger effect",
    PARTLY: "some statements or settings hold, others do not",
    UNDECIDED: "measured, but p or the interval does not decide, or there is one seed",
    "implemented": "a definition or an algorithm, compared with its equations in float64 by tests",
    NOT_RUN: "not run or not measured here",
    "cannot be run here": "it needs data or GPUs that this project does not have",
    "no claim": "a picture, a notation, a setting, a step of a proof, or a score that is cited",
}
"""Each verdict with its meaning."""
TITLES = {"powernorm": "PowerNorm", "adanorm": "AdaNorm", "xiong": "Xiong et al."}
UP, DOWN, SAME = "higher", "lower", "equal"
OTHER = "other"
Declared = Mapping[str, Any]


class Measured(NamedTuple):
    """The cells of a row that are computed."""

    measured: str = "-"
    interval: str = "-"
    n: str = "-"
    verdict: str = ""


# ---- the tables -----------------------------------------------------------------------------


@cache
def declared_rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each paper as ``paper_rows.yaml`` has them."""
    rows: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text("utf-8"))
    return rows


def paper_table(paper: str, results: Path) -> str:
    """Return Markdown: one row per statement of a paper."""
    return markdown(pd.DataFrame(judged(paper, results)))


def verdict_counts(results: Path) -> str:
    """Return Markdown: the verdicts with their meaning, and how often each paper has them."""
    counts: dict[str, dict[str, str]] = {}
    for paper, title in TITLES.items():
        verdicts = [row["verdict"] for row in judged(paper, results)]
        counts[title] = {verdict: str(verdicts.count(verdict)) for verdict in VERDICTS}
        counts[title]["all rows"] = str(len(verdicts))
    table = pd.DataFrame({**counts, "meaning": {**VERDICTS, "all rows": ""}})
    return markdown(table.rename_axis("verdict").reset_index())


@cache
def judged(paper: str, results: Path) -> list[dict[str, str]]:
    """Return the rows of a paper with their measurements and verdicts.

    Raises:
        CommandError: a row has no evidence and no verdict, or an unknown verdict.
    """
    rows = []
    for row in declared_rows()[paper]:
        cells = measured(row, results)
        if cells.verdict not in VERDICTS:
            raise CommandError(
                f"{paper}, {row['what']}: verdict is {cells.verdict!r}; choose from "
                f"{', '.join(VERDICTS)}, or give evidence: {', '.join(KINDS)}"
            )
        computed = {"measured": cells.measured, "95 % interval": cells.interval, "n": cells.n}
        said = {"what": row["what"], "what it says": row["says"], "here": row.get("ours", "-")}
        rows.append({**said, **computed, "verdict": cells.verdict})
    return rows


def measured(row: Declared, results: Path) -> Measured:
    """Return what was measured for a row, by the kind of its evidence."""
    for kind, of_kind in KINDS.items():
        if kind in row:
            return of_kind(row[kind], results)
    return Measured(verdict=row.get("verdict", ""))


# ---- comparisons of arms --------------------------------------------------------------------


def of_comparison(evidence: Declared, results: Path) -> Measured:
    """Return the comparison of two arms of a study; the default outcome is the score."""
    tests = comparisons(evidence["study"], evidence.get("outcome", SCORE), results)
    test = tests.loc[arms_of(evidence)]
    verdict, decided, note = test["verdict"], "", ""
    if verdict in (Verdict.BETTER, Verdict.WORSE):
        decided = UP if (verdict == Verdict.BETTER) == test["higher_is_better"] else DOWN
    if verdict == Verdict.EQUIVALENT:
        note = f"; equivalent within {test['margin_text']}"
    judgment = judge(evidence, decided, test["difference_low"], test["difference_high"])
    if evidence["claim"] == SAME and verdict == Verdict.EQUIVALENT:
        judgment = REPRODUCED
    n = f"{max(len(test['by_seed']), 1)}{', declared' if test['before'] else ''}"
    return Measured(test["mean_text"] + note, test["interval_text"], n, judgment)


def arms_of(evidence: Declared) -> tuple[str, str]:
    """Return arm and baseline with their placement."""
    return with_placement(evidence["arm"]), with_placement(evidence["baseline"])


@cache
def comparisons(name: str, outcome: str, results: Path) -> pd.DataFrame:
    """Return the comparisons of one study and outcome, by arm and baseline.

    The declared pairs are one family of Holm's correction; all others of the study's report and of
    docs/papers.md are another one.
    """
    study = read_named(name, results)
    rows = chain(*declared_rows().values())
    wanted = [row["compare"] for row in rows if "compare" in row]
    here = [
        arms_of(each)
        for each in wanted
        if (each["study"], each.get("outcome", SCORE)) == (name, outcome)
    ]
    declared = declared_tests(study, outcome)
    of_study = set(zip(declared["arm"], declared["baseline"]))
    pairs = [pair for pair in dict.fromkeys((*study.pairs, *here)) if pair not in of_study]
    tests = pd.concat([declared, compare_arms(study.runs, pairs, outcome)], ignore_index=True)
    shown = ["difference", "difference_low", "difference_high"]
    texts = formatted(tests[shown], study.metric, outcome)
    primary = {(each.arm, each.baseline): each for each in study.primary}
    keys = list(zip(tests["arm"], tests["baseline"]))
    before = {
        key
        for key, each in primary.items()
        if each.declared == BEFORE and outcome in (each.outcome for each in study.primary)
    }
    return tests.assign(
        mean_text=texts.iloc[:, 0],
        interval_text=texts.iloc[:, 1],
        higher_is_better=higher_is_better(study.runs, outcome),
        margin_text=[primary[key].margin if key in primary else "" for key in keys],
        before=[key in before for key in keys],
    ).set_index(["arm", "baseline"])


def judge(evidence: Declared, decided: str, low: float, high: float) -> str:
    """Return the verdict on a claim, given the decided direction and interval of a difference."""
    margin = evidence.get("margin")
    if margin is not None and -margin < low and high < margin:
        return REPRODUCED if evidence["claim"] == SAME else NOT_SEEN
    if not decided:
        return UNDECIDED
    if decided == evidence["claim"]:
        return REPRODUCED
    return DIFFERS if evidence.get("setting") == OTHER else CONTRADICTED


def by_interval(low: float, high: float) -> str:
    """Return the direction that an interval decides; empty if it contains 0 or is undefined."""
    return UP if low > 0 else DOWN if high < 0 else ""


def of_differences(values: Sequence[float], evidence: Declared, digits: str) -> Measured:
    """Return the mean over seeds of a difference, with its interval; no correction."""
    sample = describe(list(values))
    low, high = sample.interval
    interval = "-" if math.isnan(low) else f"{low:{digits}} to {high:{digits}}"
    verdict = judge(evidence, by_interval(low, high), low, high)
    return Measured(f"{sample.mean:{digits}}", interval, str(len(values)), verdict)


# ---- theory, recorded statistics, spectra, examples -----------------------------------------


def of_theory(evidence: Declared, results: Path) -> Measured:
    """Return the rows of verdicts of a claim in docs/theory.md; ``where`` selects by column."""
    name, folder = evidence["claim"], results / "theory"
    if not (folder / f"{name}.csv").is_file():
        return Measured(verdict=NOT_RUN)
    claim = CLAIMS[name]
    where = {key: str(value) for key, value in evidence.get("where", {}).items()}
    finite, _ = finite_cases(claim, read_measurements(name, folder))
    rows = [
        row
        for row in claim.verdicts(finite)
        if all(_selects(key, value, str(row.get(key))) for key, value in where.items())
    ]
    if not rows:
        raise CommandError(f"results/theory/{name}.csv has no row of verdicts where {where}")
    holds = Counter(row["holds"] for row in rows)
    stated = holds["yes"] + holds["no"]
    verdict = PARTLY if holds["yes"] and holds["no"] else CONTRADICTED
    if not holds["no"]:
        verdict = REPRODUCED if stated else UNDECIDED
    if len(rows) > 1:
        return Measured(f"{holds['yes']} of {stated} statements hold", verdict=verdict)
    interval = str(rows[0].get(INTERVAL, "-"))
    seeds = evidence.get("n", str(read_made(folder)[name]["settings"].get("seeds", "-")))
    return Measured(str(rows[0]["measured"]), interval, "-" if interval == "-" else seeds, verdict)


def _selects(key: str, wanted: str, found: str) -> bool:
    """Return whether a row is selected: ``stated`` by its start, other columns by equality."""
    return found.startswith(wanted) if key == "stated" else found == wanted


@cache
def runs_by_norm(folder: Path) -> pd.DataFrame:
    """Return the runs of a folder, with the norm and its options as the arm."""
    runs = read_study([folder]).runs
    return runs.assign(arm=runs["norm"])


def of_record(evidence: Declared, results: Path) -> Measured:
    """Return a statistic at the first norm, by seed."""
    runs = runs_by_norm(results / evidence["folder"])
    parts = first_norm_tenths(runs, evidence["figure"], evidence["value"], evidence["norm"])
    values = parts["last tenth"] - parts["second tenth"]
    if "minus" in evidence:
        part = evidence.get("part", "last tenth")
        less = first_norm_tenths(runs, evidence["figure"], *evidence["minus"])
        values = parts[part] - less[part]
    return of_differences(list(values.dropna()), evidence, ".2g")


def of_spectrum(evidence: Declared, results: Path) -> Measured:
    """Return the difference of two arms in the mean of the singular values over the largest one."""
    study = read_named(evidence["study"], results)
    arm, baseline = (mean_decay(study, name) for name in arms_of(evidence))
    shared = sorted(set(arm) & set(baseline))
    return of_differences([arm[seed] - baseline[seed] for seed in shared], evidence, "+.4f")


def mean_decay(study: Study, arm: str) -> dict[int, float]:
    """Return the mean normalized singular value of the shared embedding, by seed."""
    means = {}
    for run in study.runs[study.runs["arm"] == arm].to_dict("records"):
        (spectrum,) = (statistics_of(run) or {})["spectra"]
        values = spectrum["values"]
        means[int(run["seed"])] = sum(values) / values[0] / len(values)
    return means


def of_example(evidence: Declared, results: Path) -> Measured:
    """Return the comparison of two norms of an example, by the score that it reports."""
    name = evidence["name"]
    scores: dict[str, dict[int, float]] = {}
    for run in read_runs(results.parent / EXAMPLES / name):
        scores.setdefault(run["norm"], {})[run["seed"]] = run["scores"][SCORES[name]]
    arm, baseline = scores[evidence["arm"]], scores[evidence["baseline"]]
    test = compare(arm, baseline, TEST_TO_TRAIN.get(name, 0.0))
    low, high = test.interval
    verdict = judge(evidence, by_interval(low, high), low, high)
    return Measured(f"{test.mean:+.2f}", f"{low:+.2f} to {high:+.2f}", str(test.n), verdict)


KINDS = {
    "compare": of_comparison,
    "theory": of_theory,
    "recorded": of_record,
    "spectrum": of_spectrum,
    "example": of_example,
}
"""The function that measures a row, by the kind of its evidence."""
