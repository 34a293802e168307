"""The table and the figure of the warm-up study, from made-up results of its runs."""

from __future__ import annotations

import csv
import dataclasses
import json

import pandas as pd
import pytest

from made_up_results import made_up
from norm_plugin.analysis import warmup
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments import compose, options
from norm_plugin.experiments.spec import RunSpec, flag_settings
from norm_plugin.experiments.sweep import Composed

LOSSES = {"train": [], "valid": [{"epoch": 1, "updates": 50, "loss": 7.5}, {"updates": 100}]}


@pytest.fixture(scope="module")
def specs():
    """The runs of the study, with results in no folder yet."""
    args = options.parse(options.sweep_parser(), [warmup.STUDY])
    with pytest.MonkeyPatch.context() as patch:  # the flags of each run are no matter here
        patch.setattr(compose, "check_training", lambda flags: None)
        return tuple(map(RunSpec.from_json, compose.read_runs(args)["runs"]))


@pytest.fixture
def plans(specs, tmp_path, monkeypatch):
    """The runs of the study, with results in ``tmp_path``."""
    runs = tuple(dataclasses.replace(spec, results=tmp_path) for spec in specs)
    monkeypatch.setattr(warmup, "read_specs", lambda args: Composed(runs, (), "", (), ()))
    return runs


def test_the_runs_are_those_of_the_paper(plans):
    """Placement x warm-up x rate, and post-norm at a fixed rate (Xiong et al., section H)."""
    runs = warmup.planned(plans)
    settings = list(zip(runs["placement"], runs["warm-up"], runs["learning rate"]))
    grid_of = {
        (placement, schedule, lr)
        for placement in ("post", "pre")
        for schedule in ("1000", "0, constant for 1000", "1")
        for lr in (0.001, 0.005)
    }
    assert set(settings) == {*grid_of, ("post", "none, fixed rate", 0.0001)}
    assert len(settings) == len(set(settings))
    for plan in plans:
        assert flag_settings(plan.training)["validate-interval-updates"] == "50"


def test_finished_and_diverged_runs_are_in_table_and_figure(plans, tmp_path, capsys):
    finished, diverged, *_ = plans
    finished.result.parent.mkdir()
    result = made_up(finished.label, bleu=31.234, curves=LOSSES)
    finished.result.write_text(json.dumps({**result, "experiment": finished.experiment}))
    failure = {"norm": diverged.label, "experiment": diverged.experiment, "seed": 1, "differs": {}}
    failure |= {"state": "diverged", "stage": "train", "reason": "inf", "curves": LOSSES}
    diverged.failure.parent.mkdir()
    diverged.failure.write_text(json.dumps(failure))
    assert warmup.main(["--results", str(tmp_path)]) == 0
    folder = finished.result.parent
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == [
        *("warmup.md", "warmup.svg", "warmup.csv")
    ]
    page = (folder / "warmup.md").read_text()
    assert "| post | 1000 | 0.001 | 31.23 | 7.50 | 7.50 | finished |" in page
    assert "| post | 1000 | 0.005 | - | 7.50 | 7.50 | diverged |" in page
    assert page.count(f"| - | - | - | {warmup.NOT_RUN} |") == len(plans) - 2
    assert "One seed, 1, so a difference between two rows can be noise. BLEU is fairseq" in page
    rows = list(csv.DictReader((folder / "warmup.csv").read_text().splitlines()))
    assert [(row["lr"], row["updates"], row["loss"]) for row in rows] == [
        *(("0.001", "50", "7.5"), ("0.005", "50", "7.5"))
    ]
    published = warmup.published_table(folder)
    assert published.startswith(page)
    assert f"](../{folder.relative_to(tmp_path.parents[1])}/warmup.svg)" in published


def test_a_run_that_did_not_finish_ends_in_a_cross():
    run = {"placement": "post", "warm-up": "1", "learning rate": 0.001}
    run |= {"losses": [[50, 7.5], [100, 9.0]]}
    diverged, finished = (
        warmup.figure(pd.DataFrame([{**run, "state": state}])).svg
        for state in ("diverged", warmup.FINISHED)
    )
    assert diverged != finished


def test_without_any_validation_it_says_so(plans, tmp_path):
    with pytest.raises(CommandError, match="has been validated yet: start the sweep, or give the"):
        warmup.main(["--results", str(tmp_path)])
    assert warmup.main(["--results", str(tmp_path), "--status"]) == 0
    assert warmup.published_table(tmp_path) == "These runs are not finished yet."
