"""tools/paper_claims.py: rows of docs/papers.md, their numbers and verdicts."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import paper_claims
from norm_lab.results.table import read_results
from norm_plugin.io.command_line import CommandError
from paper_claims import (
    CONTRADICTED,
    DIFFERS,
    NOT_RUN,
    NOT_SEEN,
    REPRODUCED,
    UNDECIDED,
    VERDICTS,
    declared_rows,
    judge,
    judged,
    measured,
    of_differences,
)

RESULTS = Path(__file__).resolve().parents[2] / "results"


def evidence(paper, kind, **wanted):
    """The declared rows with this evidence."""
    return [
        row for row in declared_rows()[paper] if kind in row and wanted.items() <= row[kind].items()
    ]


@pytest.mark.parametrize(
    ("claim", "margin", "decided", "interval", "verdict"),
    [
        ("higher", None, "higher", (1, 2), REPRODUCED),
        ("higher", None, "lower", (-2, -1), CONTRADICTED),
        ("higher", None, "", (-1, 2), UNDECIDED),
        ("higher", 3, "", (-1, 2), NOT_SEEN),
        ("higher", 3, "higher", (1, 2), NOT_SEEN),
        ("higher", 1.5, "higher", (1, 2), REPRODUCED),
        ("equal", 3, "", (-1, 2), REPRODUCED),
        ("equal", 1, "", (-1, 2), UNDECIDED),
        ("equal", 1, "lower", (-3, -2), CONTRADICTED),
        ("higher", 3, "", (float("nan"),) * 2, UNDECIDED),
    ],
)
def test_what_an_interval_says_of_a_claim(claim, margin, decided, interval, verdict):
    claimed = {"claim": claim, **({} if margin is None else {"margin": margin})}
    assert judge(claimed, decided, *interval) == verdict


def test_a_setting_that_the_statement_does_not_cover_contradicts_nothing():
    claimed = {"claim": "equal", "margin": 1, "setting": "other"}
    assert judge(claimed, "lower", -3, -2) == DIFFERS
    assert judge(claimed, "", -0.5, 0.5) == REPRODUCED


def test_every_row_says_where_and_what():
    for rows in declared_rows().values():
        for row in rows:
            kinds = [kind for kind in paper_claims.KINDS if kind in row]
            assert len(kinds) + ("verdict" in row) == 1, row["what"]
            assert row["says"] and set(row) <= {"what", "says", "ours", "verdict", *kinds}
            assert row.get("verdict", NOT_RUN) in VERDICTS
            for kind in kinds:
                assert kind == "theory" or row[kind]["claim"] in ("higher", "lower", "equal")


def test_a_row_of_arms_is_the_mean_of_the_stored_scores():
    (row,) = evidence("powernorm", "compare", study="multi30k_powernorm")
    cells = measured(row, RESULTS)
    runs = read_results(RESULTS / "multi30k_powernorm").pivot_table("score", "seed", "norm")
    difference = (runs["powernorm"] - runs["layernorm"]).mean()
    assert cells.measured.startswith(f"{difference:+.2f}")
    assert cells.n == "17, declared" and cells.verdict == UNDECIDED


def test_a_loss_is_judged_by_its_direction():
    (row,) = evidence("adanorm", "compare", study="sst5_confirmed", outcome="valid_loss")
    cells = measured(row, RESULTS)
    assert float(cells.measured) < 0 and cells.verdict == REPRODUCED
    assert cells.n == "20, declared"
    (row,) = evidence("adanorm", "compare", study="sst5_confirmed", outcome="train_loss")
    assert measured(row, RESULTS).verdict == CONTRADICTED  # it is LayerNorm's that is higher


def test_spectra_of_two_norms(monkeypatch):
    (row,) = evidence("powernorm", "spectrum")
    assert measured(row, RESULTS).verdict == NOT_SEEN
    decays = iter([{1: 0.5, 2: 0.6, 3: 0.7}, {1: 0.1, 2: 0.19, 3: 0.32}])
    monkeypatch.setattr(paper_claims, "mean_decay", lambda study, arm: next(decays))
    cells = measured(row, RESULTS)
    assert (cells.measured, cells.n, cells.verdict) == ("+0.3967", "3", REPRODUCED)


def test_a_difference_over_seeds():
    cells = of_differences([0.1, 0.2, 0.3], {"claim": "lower"}, ".2f")
    assert cells.measured == f"{statistics.mean([0.1, 0.2, 0.3]):.2f}"
    assert (cells.interval, cells.verdict) == ("-0.05 to 0.45", UNDECIDED)
    assert of_differences([0.1], {"claim": "lower"}, ".2f").interval == "-"


def test_statements_of_the_theory_are_counted(tmp_path):
    (row,) = evidence("adanorm", "theory", claim="detached")
    cells = measured(row, RESULTS)
    assert (cells.measured, cells.verdict) == ("8 of 8 statements hold", REPRODUCED)
    assert measured(row, tmp_path).verdict == NOT_RUN
    row = {**row, "theory": {"claim": "detached", "where": {"norm": "nothing"}}}
    with pytest.raises(CommandError, match="no row of verdicts where"):
        measured(row, RESULTS)


def test_a_row_without_verdict_or_evidence_is_refused(monkeypatch):
    rows = {"powernorm": [{"what": "Figure 9", "says": "nothing"}]}
    monkeypatch.setattr(paper_claims, "declared_rows", lambda: rows)
    with pytest.raises(CommandError, match=r"powernorm, Figure 9: verdict is ''; choose from"):
        judged.__wrapped__("powernorm", RESULTS)
