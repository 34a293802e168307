"""papers/verdicts.py: the rule for verdicts, and the rows of papers/papers.md."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pandas as pd
import pytest

from norm_lab.config.studies import LOSSES, SCORE
from norm_lab.results.table import read_results
from norm_plugin.io.command_line import CommandError
from papers import verdicts
from papers.example_runs import RESULTS as EXAMPLES
from papers.scores import published_scores
from papers.theory import last_layer
from papers.verdicts import (
    EXPERIMENTS,
    STATEMENTS,
    TESTS,
    TITLES,
    Measured,
    Outcome,
    claim_verdict,
    declared_rows,
    experiment_verdict,
    judge,
    judged,
    judged_differences,
    judged_row,
    measure_example,
    measured,
    own_setting_counts,
    statement_verdict,
    verdict_counts,
    with_size,
)

RESULTS = Path(__file__).resolve().parents[2] / "studies"
AGREES, SIGN, OPPOSITE = Outcome.AGREES, Outcome.SIGN, Outcome.OPPOSITE
ABSENT, OPEN = Outcome.ABSENT, Outcome.OPEN
OWN = {"reproduced", "reproduced in sign", "contradicted", "not reproduced"}
"""The verdicts that need the paper's own setting."""


def the_test(paper, kind, **wanted):
    """The one declared test with this evidence."""
    (test,) = [
        test
        for row in declared_rows()[paper]
        for test in row.get("tests", ())
        if kind in test and wanted.items() <= test[kind].items()
    ]
    return test


# ---- the rule -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "own", "other"),
    [
        (AGREES, "reproduced", "as the paper, here"),
        (SIGN, "reproduced in sign", "as the paper in sign"),
        (OPPOSITE, "contradicted", "differs here"),
        (ABSENT, "not reproduced", "not seen here"),
        (OPEN, "undecided", "undecided"),
        (Outcome.MIXED, "mixed", "mixed"),
    ],
)
def test_only_the_papers_own_setting_reproduces_or_contradicts(outcome, own, other):
    assert (experiment_verdict(outcome, True), experiment_verdict(outcome, False)) == (own, other)


def test_several_measurements_of_a_claim_have_one_verdict():
    assert claim_verdict(["differs here", "differs here"]) == "differs here"
    assert claim_verdict(["differs here", "undecided"]) == "mixed"
    assert statement_verdict([AGREES, AGREES]) == "holds"
    assert statement_verdict([OPPOSITE]) == "fails"
    assert (
        statement_verdict([AGREES, OPPOSITE])
        == statement_verdict([Outcome.MIXED])
        == "holds in part"
    )
    assert statement_verdict([OPEN]) == "not measured"


def row_of(monkeypatch, *tests, **more):
    """The cells of a row whose tests have these outcomes and settings."""
    monkeypatch.setitem(TESTS, "spectrum", lambda e, _: verdicts.Measured(e["text"], e["is"]))
    row = {"what": "Figure 9", "says": "it rises", **more}
    row["tests"] = [
        {"here": at, **own, "spectrum": {"text": "1", "is": is_}} for at, is_, own in tests
    ]
    return judged_row(row, RESULTS)


def test_every_measurement_of_a_claim_counts(monkeypatch):
    own, other = ("RT", OPEN, {"same": True}), ("a loss", OPPOSITE, {"same": False})
    here = "RT: 1: undecided<br>a loss: 1: differs here"
    assert row_of(monkeypatch, own, other, of="RT") == (here, "in part", "mixed", "")
    assert row_of(monkeypatch, other, of="RT") == ("a loss: 1", "no", "differs here", "")
    assert row_of(monkeypatch, own, of="RT") == ("RT: 1", "yes", "undecided", "")


def test_a_reason_against_the_comparison_leaves_the_claim_open(monkeypatch):
    one = ("T = 1", AGREES, {"same": False, "but": "a fourteenth of the rate"})
    here, _, verdict, _ = row_of(monkeypatch, one, of="IWSLT14")
    assert here == "T = 1: 1; a fourteenth of the rate" and verdict == "undecided"


def test_an_experiment_says_whether_its_setting_is_the_papers(monkeypatch):
    with pytest.raises(CommandError, match="Figure 9: each test needs `same: true`"):
        row_of(monkeypatch, ("characters", AGREES, {}), of="Enwik8")
    assert row_of(monkeypatch, ("any", AGREES, {})) == ("any: 1", "-", "holds", "")  # a theorem


@pytest.mark.parametrize(
    ("claim", "margin", "decided", "interval", "outcome"),
    [
        ("higher", None, "higher", (1, 2), SIGN),
        ("higher", None, "lower", (-2, -1), OPPOSITE),
        ("higher", None, "", (-1, 2), OPEN),
        ("higher", 3, "", (-1, 2), ABSENT),
        ("higher", 3, "higher", (1, 2), ABSENT),
        ("higher", 1.5, "higher", (1, 2), SIGN),
        ("equal", 3, "", (-1, 2), AGREES),
        ("equal", 1, "", (-1, 2), OPEN),
        ("equal", 1, "lower", (-3, -2), OPPOSITE),
        ("higher", 3, "", (float("nan"),) * 2, OPEN),
    ],
)
def test_what_an_interval_says_of_a_claim(claim, margin, decided, interval, outcome):
    claimed = {"claim": claim, **({} if margin is None else {"margin": margin})}
    assert judge(claimed, decided, *interval) == outcome


@pytest.mark.parametrize(
    ("published", "unit", "outcome", "size"),
    [
        ([[3.5, 2.0]], {}, AGREES, ""),
        ([[9.0, 2.0], [3.5, 2.0]], {}, AGREES, ""),  # one of its two sizes
        ([[5.0, 2.0]], {}, SIGN, "0.5 times its size"),
        ([[2.05, 2.0], [2.1, 2.0]], {}, SIGN, "15 to 30 times its size"),
        ([[2.05, 2.0]], {"published_in": "bits"}, SIGN, "43 times its size"),  # 0.05 ln 2 nats
        ([], {}, SIGN, ""),
    ],
)
def test_a_sign_without_the_size_is_not_the_papers_effect(published, unit, outcome, size):
    claimed = {"claim": "higher", "published": published, **unit}
    found = judge(claimed, "higher", 1, 2)
    assert found == outcome and with_size(claimed, "", found, 1.5) == ("", outcome, size)


def test_a_published_pair_has_the_sign_of_its_claim():
    for row in (row for rows in declared_rows().values() for row in rows):
        for test in (test["compare"] for test in row.get("tests", ()) if "compare" in test):
            for arm, baseline in test.get("published", ()):
                assert ("higher" if arm > baseline else "lower") == test["claim"], row["what"]


def test_the_tolerance_of_the_exponents_is_named():
    for row in declared_rows()["xiong"]:
        for test in row.get("tests", ()):
            if test.get("theory", {}).get("claim") == "last-layer":
                assert f"within a tolerance of {last_layer.NEAR}" in test["here"], row["what"]


# ---- the rows -------------------------------------------------------------------------------


def test_every_row_says_what_and_where():
    for rows in declared_rows().values():
        for row in rows:
            assert ("tests" in row) != ("verdict" in row), row["what"]
            assert row["says"] and set(row) <= {"what", "says", "of", "here", "verdict", "tests"}
            for test in row.get("tests", ()):
                (kind,) = TESTS.keys() & test.keys()
                assert set(test) <= {"here", "same", "but", kind} and ("same" in test) == (
                    "of" in row
                )
                assert kind in ("theory", "largest") or test[kind]["claim"] in (
                    "higher",
                    "lower",
                    "equal",
                )


def test_a_loss_is_said_to_be_in_bits():
    """A score of characters is in nats, a training or validation loss in bits."""
    for rows in declared_rows().values():
        for row in rows:
            said = ""
            for test in row.get("tests", ()):
                said += test.get("here", "")
                if test.get("compare", {}).get("outcome", SCORE) in LOSSES:
                    assert "bits" in said and "nats" not in test["here"], row["what"]


def test_one_claim_has_one_row():
    for rows in declared_rows().values():
        assert len({row["what"] for row in rows}) == len(rows)
        said = [(row["says"], row.get("of")) for row in rows]
        assert len(set(said)) == len(said)


@pytest.fixture(scope="module")
def tables():
    return {paper: judged(paper, RESULTS) for paper in TITLES}


def test_no_row_of_another_setting_reproduces_or_contradicts(tables):
    for rows in tables.values():
        for row in rows:
            assert row["same setting"] != "no" or row["verdict"] not in OWN, row["what"]
            experiment = row["its setting"] != "-"
            assert (row["verdict"] in EXPERIMENTS) == experiment, row["what"]
            assert experiment or row["same setting"] == "-"


def test_a_rate_chosen_with_a_warm_up_does_not_judge_runs_without_one(tables):
    found = {row["what"]: row["verdict"] for row in tables["xiong"]}
    for what in ("Figure 2, Adam", "Figure 4, IWSLT14"):
        assert found[what] == "undecided"
    assert found["Figure 4, pre-LN"] == "mixed"  # one comparison has own rates


def test_misprints_and_steps_of_proofs_are_counted_apart(tables):
    lines = [line.strip("|").split("|") for line in verdict_counts(RESULTS).splitlines()[2:]]
    counts = {line[0].strip(): [int(cell) for cell in line[1:4]] for line in lines}
    assert all(counts["wrong"]) and "wrong" not in EXPERIMENTS
    for kind, of_kind in (("experiments", EXPERIMENTS), ("statements of theory", STATEMENTS)):
        totals = [sum(numbers) for numbers in zip(*(counts[verdict] for verdict in of_kind))]
        assert counts[f"**{kind}**"] == totals
    claims = sum(counts["**experiments**"])
    assert own_setting_counts(RESULTS).startswith(f"Of their {claims} experimental claims, in the")
    kinds = [numbers for name, numbers in counts.items() if name.startswith("**")]
    assert [sum(numbers) for numbers in zip(*kinds)] == [len(rows) for rows in tables.values()]


def test_a_row_of_arms_is_the_mean_of_the_stored_scores():
    cells = measured(the_test("powernorm", "compare", study="multi30k_powernorm"), RESULTS)
    runs = read_results(RESULTS / "multi30k_powernorm").pivot_table("score", "seed", "norm")
    difference = (runs["powernorm"] - runs["layernorm"]).mean()
    assert cells.text.startswith(f"{difference:+.2f} (")
    assert "n = 17, declared; equivalent" in cells.text and cells.outcome == OPEN


def test_a_loss_is_judged_by_its_direction():
    of_study = {"study": "sst5_confirmed", "outcome": "valid_loss"}
    cells = measured(the_test("adanorm", "compare", **of_study), RESULTS)
    assert cells.text.startswith("-0.070 (") and cells.outcome == SIGN
    of_study["outcome"] = "train_loss"
    cells = measured(the_test("adanorm", "compare", **of_study), RESULTS)
    assert cells.outcome == OPPOSITE  # it is LayerNorm's that is higher


def test_spectra_of_two_norms(monkeypatch):
    test = the_test("powernorm", "spectrum")
    assert measured(test, RESULTS).outcome == ABSENT
    decays = iter([{1: 0.5, 2: 0.6, 3: 0.7}, {1: 0.1, 2: 0.19, 3: 0.32}])
    monkeypatch.setattr(verdicts, "mean_decay", lambda study, arm: next(decays))
    cells = measured(test, RESULTS)
    assert cells.text.startswith("+0.3967 (") and cells.text.endswith("n = 3")
    assert cells.outcome == SIGN


def test_a_difference_over_seeds():
    cells = judged_differences([0.1, 0.2, 0.3], {"claim": "lower"}, ".2f")
    mean = statistics.mean([0.1, 0.2, 0.3])
    assert cells == (f"{mean:.2f} (-0.05 to 0.45), n = 3", OPEN, "")
    assert judged_differences([0.1], {"claim": "lower"}, ".2f").text == "0.10, n = 1"


def test_an_order_of_magnitude_is_one_unit_of_the_logarithm():
    test = the_test("powernorm", "recorded", figure="powernorm-4", part="last tenth")
    cells = measured(test, RESULTS)
    assert 0 < float(cells.text.split()[0]) < 0.1 and cells.outcome == ABSENT  # 1.2 times as far


def test_a_statistic_in_translation_over_that_of_images(monkeypatch):
    translation = pd.DataFrame({"last tenth": [0.1, 0.4], "second tenth": [9.0, 9.0]})
    images = pd.DataFrame({"last tenth": [0.01, 0.01, 0.01], "second tenth": [9.0, 9.0, 9.0]})
    runs = pd.DataFrame({"settings.model.encoder_embed_dim": [100]})
    monkeypatch.setattr(verdicts, "runs_by_norm", lambda folder: runs)
    monkeypatch.setattr(verdicts, "first_norm_tenths", lambda *args: translation)
    monkeypatch.setattr(verdicts, "recorded_values", lambda name, root: name)
    monkeypatch.setattr(verdicts, "in_tenths", lambda values: images)
    evidence = {"figure": "", "value": "", "over": "", "part": "last tenth", "claim": "higher"}
    # the mean of log10(0.1) and log10(0.4), minus log10(0.01); per channel, times sqrt(100)
    assert measured({"images": evidence}, RESULTS).text.startswith("+1.30 (")
    assert measured({"images": evidence | {"per_channel": True}}, RESULTS).text.startswith(
        "+2.30 ("
    )


def test_the_largest_channel_at_the_end_of_training():
    cells = measured(the_test("powernorm", "largest", folder="multi30k_powernorm"), RESULTS)
    first, every = cells.text.split("; ")
    assert first == "0.84 to 1.01 at the first norm, at most 1 in 16 of 17 seeds"
    assert (
        every == "1.40 to 1.84 at all norms, at most 1 in 0 of 17 seeds"
        and cells.outcome == OPPOSITE
    )


def test_statements_of_the_theory_are_counted(tmp_path):
    test = the_test("adanorm", "theory", claim="detached")
    assert measured(test, RESULTS) == ("8 of 8 statements hold", AGREES, "")
    assert measured(test, tmp_path).outcome == OPEN
    with pytest.raises(CommandError, match="no row of verdicts where"):
        measured({"theory": {"claim": "detached", "where": {"norm": "nothing"}}}, RESULTS)


def test_a_row_without_verdict_or_evidence_is_refused(monkeypatch):
    rows = {"powernorm": [{"what": "Figure 9", "says": "nothing"}]}
    monkeypatch.setattr(verdicts, "declared_rows", lambda: rows)
    with pytest.raises(CommandError, match=r"powernorm, Figure 9: verdict is ''; choose from"):
        judged.__wrapped__("powernorm", RESULTS)


def test_a_declared_comparison_of_an_example_is_decided_by_its_corrected_p(tmp_path):
    folder = tmp_path / EXAMPLES / "mnist"
    folder.mkdir(parents=True)
    gains = {"none": [0, 0, 0], "layernorm": [0.5, 0.6, 0.7], "adanorm": [9.5, 9.6, 9.7]}
    for norm in published_scores("mnist"):
        for seed, gain in zip((11, 12, 13), gains.get(norm, [1, -3, 8])):
            scores = {"test accuracy": 90.0 + gain}
            run = {"norm": norm, "seed": seed, "scores": scores, "data": "d", "command": "c"}
            (folder / f"{norm}-seed{seed}.json").write_text(json.dumps(run))
    evidence = {"name": "mnist", "arm": "layernorm", "baseline": "none", "claim": "higher"}
    # p 0.0091 times seven; its interval alone, 0.35 to 0.85, would decide
    open_ = measure_example(evidence, tmp_path / "studies")
    assert open_ == Measured("+0.60 (+0.35 to +0.85), n = 3, declared", Outcome.OPEN)
    # not declared: by the interval
    undeclared = measure_example(evidence | {"arm": "adanorm"}, tmp_path / "studies")
    assert undeclared == Measured("+9.60 (+9.35 to +9.85), n = 3", Outcome.SIGN)
