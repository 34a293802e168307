"""The rows of papers/papers.md: what a paper states, what was measured here, and the verdict.

``claims.yaml`` has the rows of each paper, one per claim. A row has ``what`` (a figure, a
table, a lemma) and ``says`` in our words. An experiment has the paper's setting as ``of`` and a
list ``tests``; a statement of theory has ``tests`` alone. A row without tests has a ``verdict``.
Each test has our setting as ``here``, for an experiment whether that is the paper's as ``same``,
and one of

    compare     two arms of a study: {study, arm, baseline, outcome, claim, margin}
    theory      rows of a claim of papers/theory.md: {claim, where, n, sign}; ``sign: true`` if the
                paper states no size
    recorded    a statistic over training at the first norm: {folder, figure, value, norm, claim}.
                It is the change over training, or a ``part`` of it, alone or divided by that of
                ``over: [value, norm]`` as a logarithm to base 10
    largest     a value over the channels at the last update: {folder, norm, value, at_most}
    spectrum    the mean singular value of the embedding over its largest: {study, arm, baseline,
                claim, margin}
    example     {name, arm, baseline, claim}
    images      {value, over, part, claim, margin}: a statistic at the first norm in translation,
                divided by ``over`` in a model of images, as a logarithm to base 10. ``per_channel``
                multiplies the first by the root of the number of channels: see image_statistics.py

``published`` are the scores of the arm and of the baseline in the paper, a pair per data set, in
the unit of the outcome, or in bits where the outcome is in nats (``published_in: bits``). Without
them, as where the paper has another unit, a decided difference has the paper's sign and no more.
``but`` says why a difference cannot decide the claim. Numbers, intervals and verdicts are computed.
A claim whose measurements have different verdicts is mixed.

The rule: an experiment has the paper's setting, ours, and whether they are the same. What was
measured gives an :class:`Outcome`, and the two together give the verdict: only the paper's own
setting can reproduce or contradict. A sign alone reproduces nothing: the interval must contain the
size that the paper states. Statements that hold in any setting (lemmas, bounds) and sentences that
can be checked against the paper's own tables have verdicts of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from norm_lab.config.studies import SCORE
from norm_lab.report.records import record_of, statistics_of, values_of
from norm_lab.report.text import markdown
from norm_lab.study.comparisons import PRIMARY
from norm_lab.study.significance import (
    LEVEL,
    Verdict,
    compare,
    compare_independent,
    describe,
)
from norm_lab.study.study import Study, read_study
from norm_plugin.io.command_line import CommandError
from papers.example_runs import declared_comparisons, scores_by_seed
from papers.findings import compare_pairs, read_named, with_placement
from papers.image_statistics import NORM, recorded_values
from papers.scores import first_norm_tenths, in_tenths
from papers.theory import CLAIMS
from papers.theory.claim import INTERVAL, finite_cases
from papers.theory.page import read_made, read_measurements

# ---- the rule ---------------------------------------------------------------------------------


class Outcome(Enum):
    """What a measurement says of a claim."""

    AGREES = "the stated effect is decided, and its stated size is within the interval"
    SIGN = "the stated sign is decided, the stated size is outside the interval or not comparable"
    OPPOSITE = "the opposite effect is decided, or the stated number or bound is excluded"
    ABSENT = "the interval lies within the margin of the row, which excludes a larger effect"
    OPEN = "neither"
    MIXED = "parts of it have different outcomes"


UNDECIDED, MIXED = "undecided", "mixed"
RULE = {
    (Outcome.AGREES, True): "reproduced",
    (Outcome.SIGN, True): "reproduced in sign",
    (Outcome.OPPOSITE, True): "contradicted",
    (Outcome.ABSENT, True): "not reproduced",
    (Outcome.AGREES, False): "as the paper, here",
    (Outcome.SIGN, False): "as the paper in sign",
    (Outcome.OPPOSITE, False): "differs here",
    (Outcome.ABSENT, False): "not seen here",
}
"""The verdict on an experiment, by its outcome and whether our setting is the paper's."""
IN = {True: "in the setting that the paper states", False: "in another setting"}
EXPERIMENTS = {
    **{verdict: f"{outcome.value}, {IN[same]}" for (outcome, same), verdict in RULE.items()},
    MIXED: "the settings, or the parts of the claim, have different verdicts",
    UNDECIDED: "measured, but p or the interval does not decide, or the comparison cannot",
    "not run": "not run or not measured here",
}
STATEMENTS = {
    "holds": "a lemma, a theorem, an equation or a bound holds in everything measured",
    "holds in part": "a part of it holds, or it holds in a part of the models",
    "fails": "it does not hold in anything measured",
    "not measured": "not measured here",
}
SENTENCES = {
    "right": "a sentence agrees with the paper's own tables",
    "partly right": "a part of the sentence agrees with them",
    "wrong": "a misprint, a step of a proof, or a sentence that disagrees with them",
}
OTHERS = {
    "implemented": "a definition or an algorithm, compared with its equations in float64 by tests",
    "no claim": "a picture, a notation, a setting, a step of a proof, or a score that is cited",
}
KINDS = {
    "experiments": EXPERIMENTS,
    "statements of theory": STATEMENTS,
    "sentences, proofs and misprints": SENTENCES,
    "others": OTHERS,
}
"""The verdicts of each kind of row, with their meaning."""
VERDICTS = dict(chain(*(verdicts.items() for verdicts in KINDS.values())))


def experiment_verdict(outcome: Outcome, same_setting: bool) -> str:
    """Return the verdict on one measurement of an experiment."""
    if outcome == Outcome.MIXED:
        return MIXED
    return RULE.get((outcome, same_setting), UNDECIDED)


def times_its_size(difference: float, sizes: Sequence[float]) -> str:
    """Return a difference over the sizes that the paper states, none of them 0, as text.

    Both have the same unit: ``34 times its size``, or a range if the paper states several.
    """
    ends = [_two_digits(end) for end in sorted(difference / size for size in sizes)]
    return f"{' to '.join(dict.fromkeys((ends[0], ends[-1])))} times its size"


def _two_digits(value: float) -> str:
    """Return a number with two significant digits at least, and none after the point above 10."""
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def claim_verdict(verdicts: Collection[str]) -> str:
    """Return the verdict on a claim that was measured several times."""
    return next(iter(verdicts)) if len(set(verdicts)) == 1 else MIXED


def statement_verdict(outcomes: Collection[Outcome]) -> str:
    """Return the verdict on a statement of theory, given the outcomes of its measurements."""
    if set(outcomes) == {Outcome.AGREES}:
        return "holds"
    if set(outcomes) == {Outcome.OPPOSITE}:
        return "fails"
    return "not measured" if set(outcomes) == {Outcome.OPEN} else "holds in part"


FILE = Path(__file__).with_name("claims.yaml")
THEORY = Path("papers") / "data" / "theory"
TITLES = {"powernorm": "PowerNorm", "adanorm": "AdaNorm", "xiong": "Xiong et al."}
UP, DOWN, SAME = "higher", "lower", "equal"
Declared = Mapping[str, Any]


class Measured(NamedTuple):
    """What one test measured.

    Attributes:
        text: the number, its interval and n.
        outcome: what it says of the claim.
        size: the number over the one that the paper states, as text; empty if not comparable.
    """

    text: str
    outcome: Outcome
    size: str = ""


# ---- the tables -----------------------------------------------------------------------------


@cache
def declared_rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each paper as ``claims.yaml`` has them."""
    rows: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text("utf-8"))
    return rows


def paper_table(paper: str, results: Path) -> str:
    """Return Markdown: one row per claim of a paper."""
    rows = pd.DataFrame(judged(paper, results))
    rows["verdict"] += rows["size"].map(lambda size: f", {size}" if size else "")
    return markdown(rows.drop(columns="size"))


def verdict_counts(results: Path) -> str:
    """Return Markdown: the verdicts by kind of row, and how often each paper has them."""
    counts = {
        title: Counter(row["verdict"] for row in judged(paper, results))
        for paper, title in TITLES.items()
    }
    rows = []
    for kind, verdicts in KINDS.items():
        for verdict, meaning in {f"**{kind}**": "", **verdicts}.items():
            of_kind = list(verdicts) if not meaning else [verdict]
            shown = {title: sum(own[each] for each in of_kind) for title, own in counts.items()}
            rows.append({"verdict": verdict, **shown, "meaning": meaning})
    return markdown(pd.DataFrame(rows))


def own_setting_counts(results: Path) -> str:
    """Return Markdown: how many experimental claims were decided in the paper's own setting."""
    found = Counter(row["verdict"] for paper in TITLES for row in judged(paper, results))
    claims = sum(found[verdict] for verdict in EXPERIMENTS)
    own = ", ".join(f"{found[verdict]} {verdict}" for (_, same), verdict in RULE.items() if same)
    return (
        f"Of their {claims} experimental claims, in the setting that the paper states: {own}. The "
        "others are mixed or undecided, were measured in another setting, or were not run."
    )


@cache
def judged(paper: str, results: Path) -> list[dict[str, str]]:
    """Return the rows of a paper with their measurements and verdicts.

    Raises:
        CommandError: a row has no tests and no verdict, or an unknown verdict, or a test of an
            experiment does not say whether its setting is the paper's.
    """
    rows = []
    for row in declared_rows()[paper]:
        here, same, verdict, size = judged_row(row, results)
        if verdict not in VERDICTS:
            raise CommandError(
                f"{paper}, {row['what']}: verdict is {verdict!r}; choose from "
                f"{', '.join(VERDICTS)}, or give tests: {', '.join(TESTS)}"
            )
        said = {"what": row["what"], "what it says": row["says"], "its setting": row.get("of", "-")}
        ours = {"measured here": here, "same setting": same, "verdict": verdict, "size": size}
        rows.append(said | ours)
    return rows


def judged_row(row: Declared, results: Path) -> tuple[str, str, str, str]:
    """Return our side of a row: what was measured, if the setting is the paper's, verdict, size.

    The size is that of :class:`Measured`, if the row has one test.
    """
    if "tests" not in row:
        return row.get("here", "-"), "-", row.get("verdict", ""), ""
    tests = row["tests"]
    cells = [measured(test, results) for test in tests]
    lines = [": ".join(filter(None, (t.get("here"), c.text))) for t, c in zip(tests, cells)]
    if "of" not in row:
        return "<br>".join(lines), "-", statement_verdict([cell.outcome for cell in cells]), ""
    if not all(isinstance(test.get("same"), bool) for test in tests):
        raise CommandError(f"{row['what']}: each test needs `same: true` or `same: false`")
    verdicts = [experiment_verdict(cell.outcome, test["same"]) for test, cell in zip(tests, cells)]
    own = [test["same"] for test in tests]
    same = "yes" if all(own) else "in part" if any(own) else "no"
    if len(tests) == 1:
        return lines[0], same, verdicts[0], cells[0].size
    lines = [
        ", ".join(filter(None, (f"{line}: {verdict}", cell.size)))
        for line, verdict, cell in zip(lines, verdicts, cells)
    ]
    return "<br>".join(lines), same, claim_verdict(verdicts), ""


def measured(test: Declared, results: Path) -> Measured:
    """Return what was measured in a test, by its kind; ``but`` leaves the claim open."""
    (kind,) = TESTS.keys() & test.keys()
    cells = TESTS[kind](test[kind], results)
    return Measured(f"{cells.text}; {test['but']}", Outcome.OPEN) if "but" in test else cells


def published_sizes(evidence: Declared) -> list[float]:
    """Return the differences of the scores that a paper has, arm minus baseline; may be empty."""
    factor = math.log(2) if evidence.get("published_in") == "bits" else 1.0
    return [factor * (arm - baseline) for arm, baseline in evidence.get("published", ())]


def with_size(evidence: Declared, text: str, outcome: Outcome, difference: float) -> Measured:
    """Return what a difference says of a claim, with its size if only the sign is the paper's."""
    sizes = published_sizes(evidence)
    size = times_its_size(difference, sizes) if outcome == Outcome.SIGN and sizes else ""
    return Measured(text, outcome, size)


# ---- comparisons of arms --------------------------------------------------------------------


def measure_comparison(evidence: Declared, results: Path) -> Measured:
    """Return the comparison of two arms of a study; the default outcome is the score."""
    tests = comparisons(evidence["study"], evidence.get("outcome", SCORE), results)
    test = tests.loc[arms_of(evidence)]
    verdict, decided, note = test["verdict"], "", ""
    if verdict in (Verdict.BETTER, Verdict.WORSE):
        decided = UP if (verdict == Verdict.BETTER) == test["higher_is_better"] else DOWN
    if verdict == Verdict.EQUIVALENT:
        note = f"; equivalent within {test['margin_text']}"
    outcome = judge(evidence, decided, test["difference_low"], test["difference_high"])
    if evidence["claim"] == SAME and verdict == Verdict.EQUIVALENT:
        outcome = Outcome.AGREES
    n = f"{max(len(test['by_seed']), 1)}{', declared' if test['family'] == PRIMARY else ''}"
    text = text_of(test["mean"], test["95 % interval"], n) + note
    return with_size(evidence, text, outcome, test["difference"])


def text_of(mean: str, interval: str, n: str) -> str:
    """Return what was measured as text; one seed has no interval."""
    return f"{mean}, n = {n}" if interval == "-" else f"{mean} ({interval}), n = {n}"


def arms_of(evidence: Declared) -> tuple[str, str]:
    """Return arm and baseline with their placement."""
    return with_placement(evidence["arm"]), with_placement(evidence["baseline"])


@cache
def comparisons(name: str, outcome: str, results: Path) -> pd.DataFrame:
    """Return the comparisons of one study and outcome, by arm and baseline.

    The others than the declared ones, those of the study's report and of papers/papers.md, are one
    family of Holm's correction.
    """
    rows = chain(*declared_rows().values())
    wanted = [test["compare"] for row in rows for test in row.get("tests", ()) if "compare" in test]
    here = [
        arms_of(each)
        for each in wanted
        if (each["study"], each.get("outcome", SCORE)) == (name, outcome)
    ]
    study = read_named(name, results)
    table = compare_pairs(study, outcome, here).set_index(["arm", "baseline"])
    margins = {(each.arm, each.baseline): each.margin for each in study.primary}
    return table.assign(margin_text=[margins.get(pair, "") for pair in table.index])


def judge(evidence: Declared, decided: str, low: float, high: float) -> Outcome:
    """Return what the decided direction and the interval of a difference say of a claim."""
    margin = evidence.get("margin")
    if margin is not None and -margin < low and high < margin:
        return Outcome.AGREES if evidence["claim"] == SAME else Outcome.ABSENT
    if not decided:
        return Outcome.OPEN
    if decided != evidence["claim"]:
        return Outcome.OPPOSITE
    sizes = published_sizes(evidence)
    within = bool(sizes) and low <= max(sizes) and min(sizes) <= high
    return Outcome.AGREES if within else Outcome.SIGN


def by_interval(low: float, high: float) -> str:
    """Return the direction that an interval decides; empty if it contains 0 or is undefined."""
    return UP if low > 0 else DOWN if high < 0 else ""


def judged_differences(values: Sequence[float], evidence: Declared, digits: str) -> Measured:
    """Return the mean over seeds of a difference, with its interval; no correction."""
    sample = describe(list(values))
    return judged_mean(evidence, sample.mean, sample.interval, str(len(values)), digits)


def judged_mean(
    evidence: Declared,
    mean: float,
    interval: tuple[float, float],
    n: str,
    digits: str = "+.2f",
    decided: str | None = None,
) -> Measured:
    """Return a mean difference with its interval; this decides, unless ``decided`` is given."""
    low, high = interval
    outcome = judge(evidence, by_interval(low, high) if decided is None else decided, low, high)
    ends = "-" if math.isnan(low) else f"{low:{digits}} to {high:{digits}}"
    return with_size(evidence, text_of(f"{mean:{digits}}", ends, n), outcome, mean)


# ---- theory, recorded statistics, spectra, examples, images -------------------------------------


def measure_theory(evidence: Declared, results: Path) -> Measured:
    """Return the rows of verdicts of a claim in papers/theory.md; ``where`` selects by column.

    A row may hold by its tolerance although its interval excludes the stated number, which the text
    then says.
    """
    name, folder = evidence["claim"], results.parent / THEORY
    if not (folder / f"{name}.csv").is_file():
        return Measured("", Outcome.OPEN)
    claim = CLAIMS[name]
    where = {key: str(value) for key, value in evidence.get("where", {}).items()}
    finite, _ = finite_cases(claim, read_measurements(name, folder))
    rows = [
        row
        for row in claim.verdicts(finite)
        if all(_selects(key, value, str(row.get(key))) for key, value in where.items())
    ]
    if not rows:
        raise CommandError(f"papers/data/theory/{name}.csv has no row of verdicts where {where}")
    holds = Counter(row["holds"] for row in rows)
    stated = holds["yes"] + holds["no"]
    outcome = Outcome.MIXED if holds["yes"] and holds["no"] else Outcome.OPPOSITE
    if not holds["no"]:
        agrees = Outcome.SIGN if evidence.get("sign") else Outcome.AGREES
        outcome = agrees if stated else Outcome.OPEN
    if len(rows) > 1:
        excluded = sum(row.get("contains it") == "no" for row in rows)
        within = f"; {excluded} of the intervals exclude the stated number" if excluded else ""
        return Measured(f"{holds['yes']} of {stated} statements hold{within}", outcome)
    interval = str(rows[0].get(INTERVAL, "-"))
    if interval == "-":
        return Measured(str(rows[0]["measured"]), outcome)
    seeds = evidence.get("n", str(read_made(folder)[name]["settings"].get("seeds", "-")))
    return Measured(text_of(str(rows[0]["measured"]), interval, seeds), outcome)


def _selects(key: str, wanted: str, found: str) -> bool:
    """Return whether a row is selected: ``stated`` by its start, other columns by equality."""
    return found.startswith(wanted) if key == "stated" else found == wanted


@cache
def runs_by_norm(folder: Path) -> pd.DataFrame:
    """Return the runs of a folder, with the norm and its options as the arm."""
    runs = read_study([folder]).runs
    return runs.assign(arm=runs["norm"])


def measure_record(evidence: Declared, results: Path) -> Measured:
    """Return a statistic at the first norm, by seed."""
    runs = runs_by_norm(results / evidence["folder"])
    parts = first_norm_tenths(runs, evidence["figure"], evidence["value"], evidence["norm"])
    if "part" not in evidence:
        values = parts["last tenth"] - parts["second tenth"]
    else:
        values = parts[evidence["part"]]
        if "over" in evidence:
            other = first_norm_tenths(runs, evidence["figure"], *evidence["over"])
            values = np.log10(values / other[evidence["part"]])
    return judged_differences(list(values.dropna()), evidence, ".2g")


def measure_largest(evidence: Declared, results: Path) -> Measured:
    """Return the largest value over the channels, of the encoder's first norm and of all.

    It is that of the last update of each run. The claim is that it is ``at_most`` a number in all.
    """
    runs = runs_by_norm(results / evidence["folder"])
    by_norm = []
    for run in runs[runs["arm"] == evidence["norm"]].to_dict("records"):
        if (record := record_of(run)) is not None:
            values = values_of(record, [evidence["value"]])
            values = values[values["place"].str.startswith("encoder")]
            last = values[values["update"] == values["update"].max()]
            by_norm.append(list(last[f"{evidence['value']}_1"]))
    limit, seeds, texts = evidence["at_most"], len(by_norm), []
    parts = {
        "at the first norm": [norms[0] for norms in by_norm],
        "at all norms": map(max, by_norm),
    }
    for part, values in parts.items():
        largest = list(values)
        within = sum(value <= limit for value in largest)
        span = f"{min(largest):.2f} to {max(largest):.2f}"
        texts.append(f"{span} {part}, at most {limit} in {within} of {seeds} seeds")
    outcome = {seeds: Outcome.AGREES, 0: Outcome.OPPOSITE}.get(within, Outcome.MIXED)
    return Measured("; ".join(texts), outcome)


def measure_spectrum(evidence: Declared, results: Path) -> Measured:
    """Return the difference of two arms in the mean of the singular values over the largest one."""
    study = read_named(evidence["study"], results)
    arm, baseline = (mean_decay(study, name) for name in arms_of(evidence))
    shared = sorted(set(arm) & set(baseline))
    return judged_differences([arm[seed] - baseline[seed] for seed in shared], evidence, "+.4f")


def mean_decay(study: Study, arm: str) -> dict[int, float]:
    """Return the mean normalized singular value of the shared embedding, by seed."""
    means = {}
    for run in study.runs[study.runs["arm"] == arm].to_dict("records"):
        (spectrum,) = (statistics_of(run) or {})["spectra"]
        values = spectrum["values"]
        means[int(run["seed"])] = sum(values) / values[0] / len(values)
    return means


def measure_example(evidence: Declared, results: Path) -> Measured:
    """Return the comparison of two norms of an example, by the score that it reports.

    A declared comparison is decided by its corrected p, another one by its interval.
    """
    name, (norm, baseline) = evidence["name"], (evidence["arm"], evidence["baseline"])
    declared = declared_comparisons(name, results.parent).get((norm, baseline))
    if declared:
        test, n = declared.test, f"{declared.test.n}, declared"
        decided = (UP if test.mean > 0 else DOWN) if declared.p < LEVEL else ""
        return judged_mean(evidence, test.mean, test.interval, n, decided=decided)
    scores = scores_by_seed(name, results.parent)
    test = compare(scores[norm], scores[baseline])
    return judged_mean(evidence, test.mean, test.interval, str(test.n))


def measure_images(evidence: Declared, results: Path) -> Measured:
    """Return a statistic in translation over that in a model of images; Welch's interval."""
    runs = runs_by_norm(results / "multi30k_cpu")
    part, value = evidence["part"], evidence["value"]
    words = first_norm_tenths(runs, evidence["figure"], value, NORM)[part]
    images = in_tenths(recorded_values(evidence["over"], results.parent))[part]
    channels = runs["settings.model.encoder_embed_dim"].iat[0]
    factor = math.sqrt(channels) if evidence.get("per_channel") else 1.0
    test = compare_independent(list(np.log10(factor * words)), list(np.log10(images)))
    return judged_mean(evidence, test.mean, test.interval, f"{len(words)} and {len(images)}")


TESTS = {
    "compare": measure_comparison,
    "theory": measure_theory,
    "recorded": measure_record,
    "largest": measure_largest,
    "spectrum": measure_spectrum,
    "example": measure_example,
    "images": measure_images,
}
"""The function that measures a test, by its kind."""
