"""The figures and tables of papers/README.md and its pages, and the numbers in their prose."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest

from norm_lab.config.studies import BEFORE, LOSSES, SCORE
from norm_lab.study.comparisons import outcome_values
from norm_lab.study.significance import half_interval
from norm_lab.study.study import Study
from papers.across import compare_across, declared_across_studies
from papers.example_runs import declared_comparisons
from papers.findings import (
    COMPARISONS,
    DECLARED,
    FINDINGS,
    Effect,
    finding_table,
    measure,
    measured,
    read_named,
    rows_of,
)

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAPERS = ROOT / "studies", ROOT / "papers"
README, FIRST = ROOT / "README.md", PAPERS / "README.md"
PAGES = [
    page
    for page in sorted(PAPERS.glob("*.md"))
    if page.read_text("utf-8").partition("\n")[0].endswith("?")
]
ANSWER = re.compile(r"\*\*(?P<answer>[^*]+)\*\*$", re.MULTILINE)
STUDIES = sorted({key.study for key in COMPARISONS})
SHOWN = {effect.key for group in FINDINGS.values() for effect in group}
NUMBER = r"(-?\d+\.\d+)"
INTERVAL = re.compile(rf"{NUMBER}[^().\d]*\({NUMBER} to {NUMBER}")
REPORT = re.compile(r"studies/\w+/README\.md$")
GENERATED = re.compile(r"<!-- begin:.*?<!-- end:[^\n]*", re.DOTALL)
ELSEWHERE = {
    # chrF of the stored translations, whose references are not in the repository
    *(("0.10", "-0.11", "0.31"), ("0.50", "0.32", "0.68"), ("-0.30", "-0.69", "0.10")),
    *(("-0.12", "-0.32", "0.08"), ("0.08", "-0.40", "0.57"), ("0.84", "0.50", "1.18")),
    ("0.08", "-0.03", "0.20"),  # the sensitivity to the rate: characters_powernorm
    ("0.24", "-0.06", "0.53"),  # the interim look of multi30k_powernorm, at ten of its seeds
}
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\w)")
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")
NOT_WORDS = re.compile(r"```.*?```|`[^`]*`|(?<=\])\([^)]*\)", re.DOTALL)
NOT_PRINTED = {
    # Python; published; hours; gigabytes; millions of parameters
    "README": "3.13 41.02 35.5 31.2 28.3 53.2 77.21 39.23 0.3 1.5 2.5 0.1 0.4 0.2 0.04 6.7 1.2",
    "adanorm": "0.086 1.31",  # a training loss after five epochs; published
    "depth": "4.81 0.02 0.03",  # the entropy of single characters; deviations of two trials
    "derivatives": "4.586 4.7",  # the worst of five runs; a level of curves
    "gain-and-bias": "1.31",  # published
    # alpha; published; curves; nanoGPT's own loss; a sign test; over the rates of the trials
    "norms": "0.9 1.07 2.35 0.271 1.88 0.29 2.175 2.183 2.220 2.246 0.07 0.08 0.10 0.13 0.0005"
    " 0.24 0.72",
    "powernorm": "0.77 2.86 4.79 4.81 2.8",  # epochs; a training loss; curves
    "small-batches": "2.58 0.19",  # training losses
    # published; an undeclared difference; the rate; millions of parameters; ratios; a curve; epochs
    "tensorized": "47.6 53.2 0.160 7.5 5.4 0.066 0.00025 6.7 1.3 1.4 2.8 3.1 160.15 1.5",
    "transformer-xl": "1.5 0.00 0.03 0.8",  # epochs; published; the spread of five seeds
    # alpha; published; a level; the worst of nine pairs; trials; p of a test not in the table
    "translation": "0.9 0.4 1.5 0.95 2.5 3.799 4.824 5.222 4.574 4.603 0.407 0.33",
    "warmup": "3.2 8.45 4.1",  # sections, and a published score
}
"""Decimals of a page that neither its tables nor the reports that it links print."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_opens_with_its_answer_in_one_short_sentence(page):
    text = page.read_text("utf-8")
    question, _, answer, *_ = text.splitlines()
    assert question.startswith("# ") and question.endswith("?")
    assert ANSWER.fullmatch(answer), answer
    for each in ANSWER.finditer(text):
        assert each["answer"].endswith(".") and len(each["answer"].split()) <= 25


def test_the_first_page_links_every_question():
    text = FIRST.read_text("utf-8")
    for page in PAGES:
        question = page.read_text("utf-8").splitlines()[0].removeprefix("# ")
        assert re.search(rf"^- \[[^\]]+\?\]\({page.name}\)$", text, re.MULTILINE), question


def test_intervals_in_prose_are_those_of_the_runs():
    """Each ``0.67 (0.42 to 0.91`` is the interval of a difference of two arms, or its negative."""
    known = ELSEWHERE | known_intervals()
    wrong = []
    for page in (README, FIRST, *PAGES):
        prose = " ".join(GENERATED.sub("", page.read_text("utf-8")).split())
        found = INTERVAL.findall(prose.replace("+", ""))
        wrong += [(page.name, *each) for each in found if each not in known]
    assert wrong == []


@pytest.mark.parametrize("page", [README, FIRST, *PAGES], ids=lambda page: page.stem)
def test_decimals_in_prose_are_printed_by_a_report(page):
    """By a report that the page links, or in a generated table of the page or of a linked one."""
    text = page.read_text("utf-8")
    prose = GENERATED.sub("", text)
    printed = "".join(GENERATED.findall(text))
    for link in LINK.findall(prose):
        linked = (page.parent / link).read_text("utf-8")
        printed += linked if REPORT.search(link) else "".join(GENERATED.findall(linked))
    known = {*re.findall(r"\d+\.\d+", printed), *NOT_PRINTED.get(page.stem, "").split()}
    words = INTERVAL.sub("", " ".join(NOT_WORDS.sub("", prose).split()).replace("+", ""))
    assert [number for number in DECIMAL.findall(words) if number not in known] == []


@pytest.mark.parametrize("name", FINDINGS)
def test_figures_draw_the_numbers_of_the_tables(name):
    """A file draws the rows that are not off its scale; that it is fresh, test_docs.py tests."""
    svg = (PAPERS / f"{name}.svg").read_text("utf-8")
    assert svg.count(", n = ") == sum(not each.off_scale for each in FINDINGS[name])


@pytest.mark.parametrize(
    "study", sorted({each.study for group in FINDINGS.values() for each in group})
)
def test_no_comparison_declared_before_the_runs_is_left_out(study):
    for each in read_named(study, RESULTS).primary:
        if each.declared == BEFORE:
            assert (study, (each.arm, each.baseline), each.outcome) in SHOWN


def test_a_verdict_on_what_was_not_declared_says_that_it_is_exploratory():
    rows = finding_table("small-batches", RESULTS).splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    ends = {cell[0]: cell[-2:] for cell in cells}
    assert ends["powernorm, 256 tokens minus batchnorm, 256 tokens"] == ["undecided", "before"]
    assert ends["powernorm-v, 4,096 tokens minus `layernorm`"] == ["better, exploratory", "-"]
    assert ends["powernorm, 4,096 tokens minus `layernorm`"] == ["undecided", "-"]
    (first, *_) = finding_table("adanorm", RESULTS).splitlines()[4:]
    assert first.endswith("| better | before |")


def test_a_row_is_the_comparison_of_its_study():
    rows = rows_of(FINDINGS["gain-and-bias"], RESULTS).set_index(["study", "outcome"])
    assert set(rows["arm"]) == {"layernorm-simple"} and len(rows) == 4
    declared = rows.loc[("adanorm_sst5", "score")]
    # the numbers that the study's own report has
    assert declared["difference"] == pytest.approx(-0.0407, abs=5e-4)
    assert declared["margin"] == 0.3 and len(declared["by_seed"]) == 10
    assert not rows.loc[("adanorm_sst5", "valid_loss"), "higher_is_better"]


def test_p_of_an_outcome_is_corrected_over_the_declared_pairs():
    by_loss = Effect("adanorm_sst5", "detachnorm-mean", "detachnorm-std", "valid_loss")
    assert measured(RESULTS)[by_loss.key]["p_holm"] == pytest.approx(0.024, abs=5e-4)


def test_the_p_of_a_difference_beyond_a_margin_is_named_and_has_its_permutation_test():
    row = measured(RESULTS)[Effect("characters_fair", "none").key]
    assert row["p (Holm)"] == "0.043 (Bonferroni)" and row["p_permutation"] == 0.0625
    within = measured(RESULTS)[Effect("multi30k_powernorm", "powernorm").key]
    assert within["p (Holm)"] == "0.004" and within["p (permutation)"] == "-"


def test_an_arm_without_runs_is_an_error():
    key = Effect("multi30k_cpu", "mabn").key
    with pytest.raises(KeyError, match="mabn"):
        measure(key.study, key.outcome, [key], RESULTS)


# studies with the same seeds, of which prose compares arms
TOGETHER = ("characters_tuned_short", "characters_tuned_post", "characters_powernorm")
# the same comparison in several studies, of which prose has another outcome than across.py
POOLED = (
    (("adanorm_sst5", "sst5_confirmed", "adanorm_scale"), "adanorm, pre", "layernorm-kaiming, pre"),
)
SELECTED = "training.best_valid.value"  # the accuracy that selects the checkpoint of a classifier


def known_intervals() -> set[tuple[str, ...]]:
    """Return the mean and interval of each difference that prose may have, as texts."""
    found = [measured(RESULTS)[key] for key in COMPARISONS]
    names = ("difference", "difference_low", "difference_high")
    known = {form for row in found for form in forms(*(row[name] for name in names))}
    for each in (each for name in DECLARED["across"] for each in declared_across_studies(name)):
        test, _ = compare_across(each, RESULTS)
        known |= forms(test.mean, *test.interval)
    for _, test, _ in declared_comparisons("mnist", RESULTS.parent).values():
        known |= forms(test.mean, *test.interval)
    tables = {name: outcome_tables(read_named(name, RESULTS)) for name in STUDIES}
    groups = [*((name,) for name in STUDIES), TOGETHER]
    for group in groups:
        for outcome in (SCORE, *LOSSES, "loss", SELECTED):
            of_group = [tables[name][outcome] for name in group if outcome in tables[name]]
            seeds = pd.concat(of_group, axis="columns") if of_group else pd.DataFrame()
            for first, second in combinations(range(seeds.shape[1]), 2):
                known |= forms_of(seeds.iloc[:, first] - seeds.iloc[:, second])
    for group, arm, baseline in POOLED:
        for outcome in (SCORE, SELECTED):
            of_group = [tables[name][outcome] for name in group if outcome in tables[name]]
            seeds = pd.concat(of_group)
            known |= forms_of(seeds[arm] - seeds[baseline])
    return known


def outcome_tables(study: Study) -> dict[str, pd.DataFrame]:
    """Return a table for each outcome: a row per seed, a column per arm."""
    columns = {SCORE: outcome_values(study.runs)}
    columns |= {name: study.runs[name] for name in (*LOSSES, SELECTED) if name in study.runs}
    if study.metric.losses:
        columns |= {"loss": study.runs.get("scores.loss.score", study.runs["valid_loss"])}
    return {
        name: study.runs.assign(value=values.astype(float)).pivot(
            index="seed", columns="arm", values="value"
        )
        for name, values in columns.items()
    }


def forms_of(differences: pd.Series) -> set[tuple[str, ...]]:
    """Return :func:`forms` of the mean of differences by seed; none of fewer than two seeds."""
    values = differences.dropna().to_numpy()
    if len(values) < 2:
        return set()
    half = half_interval(values)
    return forms(values.mean(), values.mean() - half, values.mean() + half)


def forms(mean: float, low: float, high: float) -> set[tuple[str, ...]]:
    """Return an interval and its negative with two and with three decimals, without plus signs."""
    ends = ((mean, low, high), (-mean, -high, -low))
    return {tuple(f"{each:.{digits}f}" for each in side) for side in ends for digits in (2, 3)}
