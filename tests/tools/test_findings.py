"""The figures and tables of docs/findings.md."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from findings import (
    FINDINGS,
    Effect,
    declared_table,
    finding_table,
    measured,
    read_named,
)
from norm_lab.config.studies import BEFORE

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PAGE = (ROOT / "docs" / "findings.md").read_text("utf-8")
ANSWER = re.compile(r"\*\*(?P<answer>[^*]+)\*\*$", re.MULTILINE)


@pytest.mark.parametrize("finding", PAGE.split("\n## ")[1:], ids=lambda text: text.splitlines()[0])
def test_a_finding_opens_with_its_answer_in_one_short_sentence(finding):
    question, _, answer, *_ = finding.splitlines()
    assert question.endswith("?")
    assert ANSWER.fullmatch(answer), answer
    for each in ANSWER.finditer(finding):
        assert each["answer"].endswith(".") and len(each["answer"].split()) <= 25


@pytest.mark.parametrize("name", FINDINGS)
def test_figures_draw_the_numbers_of_the_tables(name):
    """A file has its table as its description, and draws the rows that are not off its scale."""
    svg = (ROOT / "docs" / "findings" / f"{name}.svg").read_text("utf-8")
    description = svg.partition("<desc>\n")[2].partition("\n</desc>")[0]
    assert unescape(description) == finding_table(name, RESULTS), "run python tools/findings.py"
    assert svg.count(", n = ") == sum(not each.off_scale for each in FINDINGS[name])


@pytest.mark.parametrize(
    "study", sorted({each.study for group in FINDINGS.values() for each in group})
)
def test_no_comparison_declared_before_the_runs_is_left_out(study):
    shown = {(each.study, each.pair, each.outcome) for group in FINDINGS.values() for each in group}
    for each in read_named(study, RESULTS).primary:
        if each.declared == BEFORE:
            assert (study, (each.arm, each.baseline), each.outcome) in shown


@pytest.mark.parametrize(
    ("study", "page"), [("adanorm_rt", "rt_study"), ("warmup", "warmup_study")]
)
def test_declared_comparisons_are_shown_as_on_the_page_of_the_study(study, page):
    table = declared_table(study, RESULTS)
    assert table.count("\n| ") > 3
    assert table in (ROOT / "docs" / page / "report.md").read_text("utf-8")


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
    rows = measured(RESULTS).loc["gain-and-bias"].set_index(["study", "outcome"])
    assert set(rows["arm"]) == {"layernorm-simple"} and len(rows) == 4
    declared = rows.loc[("adanorm_sst5", "score")]
    # the numbers that the study's own report has
    assert declared["difference"] == pytest.approx(-0.0407, abs=5e-4)
    assert declared["margin"] == 0.3 and len(declared["by_seed"]) == 10
    assert rows.loc[("adanorm_sst5", "valid_loss"), "better"] == "left"


def test_p_is_corrected_as_on_the_page_of_the_study():
    rows = measured(RESULTS).reset_index().set_index(["study", "arm", "baseline", "outcome"])
    claims = (ROOT / "docs" / "classification.md").read_text("utf-8")
    by_loss = ("adanorm_sst5", "detachnorm-mean", "detachnorm-std", "valid_loss")
    assert rows.loc[[by_loss], "p_holm"].iloc[0] == pytest.approx(0.024, abs=5e-4)
    assert (
        "`detachnorm-mean` minus `detachnorm-std` | -0.025 | -0.041 to -0.009 | 0.006 | 0.024"
        in claims
    )


def test_an_arm_without_runs_is_an_error(monkeypatch):
    monkeypatch.setitem(FINDINGS, "own", (Effect("multi30k_cpu", "mabn"),))
    measured.cache_clear()
    with pytest.raises(KeyError, match="mabn"):
        finding_table("own", RESULTS)
    measured.cache_clear()
