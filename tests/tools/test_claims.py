"""The tables of what a paper says of classification, beside results."""

from __future__ import annotations

import pytest

from claims import (
    CLAIMS,
    CONTRADICTED,
    NOT_RUN,
    PAPER,
    SHOWN,
    claims_table,
    reproduction_table,
)
from inference_table import inference_table
from norm_plugin.analysis.stats import Verdict
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.results import SCHEMA, write_result
from norm_plugin.experiments.studies import read_study_file, study_path
from norm_plugin.norms import NORM_TYPES
from published import PUBLISHED

UNTESTED = ["-", "-", "-", "-", "-", NOT_RUN]


def write(folder, norm, *scores, experiment="rt", lr=0.001, losses=()):
    """A result for each score, with seeds from 1, each of RT on a split of its own."""
    for seed, score in enumerate(scores, 1):
        data = {"corpus": experiment, "checksum": "the same"}
        if experiment == "rt":
            data |= {"checksum": f"of {seed}", "settings": {"split_seed": seed}}
            data |= {"training_pairs": 10**9}  # the splits hardly overlap
        result = {"schema": SCHEMA, "experiment": experiment, "norm": norm, "seed": seed}
        result |= {"metric": "accuracy", "data": data}
        result["scores"] = {"accuracy": {"score": score, "sentences": 100}}
        result["settings"] = {"optimization": {"lr": [lr]}}
        if losses:
            result["curves"] = {"valid": [{"epoch": 1, "updates": 9, "loss": losses[seed - 1]}]}
        write_result(result, folder)


def row(table, beginning):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {beginning}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_nothing_is_measured_until_it_is_run(tmp_path):
    assert row(reproduction_table("rt", tmp_path), "`adanorm`")[1:4] == ["77.50", NOT_RUN, "0"]
    assert row(claims_table("rt", tmp_path), "AdaNorm is")[2:] == ["+0.29", *UNTESTED]
    assert row(claims_table("sst5", tmp_path), "AdaNorm is")[2] == "+1.31"


def test_the_two_intervals(tmp_path):
    write(tmp_path, "layernorm", 75.0, 76.0, 77.0)
    cells = row(reproduction_table("rt", tmp_path), "`layernorm` ")
    # deviation 1, t 4.303 for 2 degrees of freedom: 4.303 / sqrt(3), and 4.303 * sqrt(1 + 1 / 3)
    assert cells[1:6] == ["77.21", "76.00", "3", "73.52 to 78.48", "yes"]
    assert cells[6:] == ["71.03 to 80.97", "yes"]
    write(tmp_path, "none", 70.0, 70.1, 70.2)
    assert row(reproduction_table("rt", tmp_path), "`none`")[5] == "no"
    write(tmp_path, "rmsnorm", 70.0)
    assert row(reproduction_table("rt", tmp_path), "`rmsnorm`")[1:5] == ["-", "70.00", "1", "-"]


@pytest.mark.parametrize(
    ("claim", "differences", "expected"),
    [
        ("AdaNorm is", (1.0, 1.1, 0.9, 1.0), SHOWN),
        ("AdaNorm is", (-1.0, -1.1, -0.9, -1.0), CONTRADICTED),
        ("AdaNorm is", (1.0, -1.1, 0.9, -1.0), Verdict.UNDECIDED),
        ("AdaNorm is", (0.5, 0.5, 0.5, 0.5), Verdict.UNDECIDED),  # nothing varies
        ("AdaNorm is", (1.0,), Verdict.NOT_TESTED),
        ("Gain and bias", (0.1, -0.1, 0.1, 0.0), SHOWN),  # within 0.3 points
        ("Gain and bias", (1.0, 1.1, 0.9, 1.0), CONTRADICTED),
        ("Gain and bias", (1.0, -1.1, 0.9, -1.0), Verdict.UNDECIDED),
    ],
)
def test_the_verdicts_are_of_differences_seed_by_seed(tmp_path, claim, differences, expected):
    splits = (60.0, 90.0, 70.0, 80.0)  # far apart, which no unpaired test would forgive
    arm = {"AdaNorm is": "adanorm", "Gain and bias": "layernorm-simple"}[claim]
    write(tmp_path, "layernorm", *splits)
    write(tmp_path, arm, *(a + b for a, b in zip(splits, differences)))
    cells = row(claims_table("rt", tmp_path), claim)
    assert cells[-1] == expected
    assert cells[3] == f"{sum(differences) / len(differences):+.2f}"


def test_p_is_corrected_for_all_claims_that_are_tested(tmp_path):
    write(tmp_path, "layernorm", 70.0, 70.0, 70.0)
    write(tmp_path, "adanorm", 71.0, 71.1, 70.9)
    alone, corrected = row(claims_table("rt", tmp_path), "AdaNorm is")[5:7]
    assert alone == corrected
    write(tmp_path, "none", 69.0, 70.0, 71.0)  # of a second claim, with a large p
    both = float(row(claims_table("rt", tmp_path), "AdaNorm is")[6])
    assert both == pytest.approx(2 * float(alone), abs=1e-3)  # printed with three digits


def test_a_loss_is_another_family_and_lower_is_better(tmp_path):
    for norm, losses in {"adanorm": (1.0, 1.1, 0.9), "layernorm": (1.5, 1.61, 1.39)}.items():
        write(tmp_path, norm, *(70.0, 70.0, 70.0), experiment="sst5", losses=losses)
    table = claims_table("sst5", tmp_path, "valid_loss")
    cells = row(table, "AdaNorm is")
    assert (cells[2], cells[-1]) == ("-0.500", SHOWN)
    assert "Gain and bias" not in table  # no margin is declared for it


def test_the_simulation_as_a_table():
    rows = inference_table(study_path("warmup").parents[2]).splitlines()
    assert len(rows) == 2 + 4 * 2 * 4  # kinds of pairs, differences, seeds


def test_runs_that_were_trained_otherwise_are_refused(tmp_path):
    write(tmp_path, "layernorm", 70.0)
    write(tmp_path, "none", 69.0, lr=0.002)
    with pytest.raises(CommandError, match="layernorm seed 1 .* none .* optimization .*0.002"):
        claims_table("rt", tmp_path)


@pytest.mark.parametrize("experiment", ["rt", "sst5"])
def test_the_claims_are_those_that_the_study_declares_and_of_published_norms(experiment):
    primary = read_study_file(study_path(PAPER.format(experiment))).primary
    assert [(each.arm, each.baseline) for each in primary] == list(CLAIMS)
    norms = {row.norm for row in PUBLISHED[experiment]}
    assert norms <= set(NORM_TYPES) and set().union(*CLAIMS) <= norms
