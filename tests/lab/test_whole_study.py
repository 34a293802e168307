"""``norm-plugin study``: tune, sweep and report, each only after the one before."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from norm_lab import commands
from norm_lab.config import compose
from norm_lab.engine import grid
from norm_lab.report import page
from norm_lab.study import tune

STUDY = "experiment: toy\ntune: {grid: {optimization.lr: [1, 2]}, seeds: [2]}\n"


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """The calls of the steps; a step fails where its status is set to 1."""
    steps = SimpleNamespace(calls=[], status={"tune": 0, "sweep": 0}, study=tmp_path / "mine.yaml")
    steps.study.write_text(STUDY)

    def fake_tune(request):
        steps.calls.append(("tune", request.results))
        if not (steps.status["tune"] or request.dry_run):
            steps.study.with_suffix(".tuned.json").touch()
        return steps.status["tune"]

    def fake_sweep(request, specs):
        steps.calls.append(("sweep", request.results))
        return steps.status["sweep"]

    result = tmp_path / "work/studies/mine/toy/layernorm-seed1.json"
    runs = [SimpleNamespace(result=result)]
    monkeypatch.setattr(tune, "tune_study", fake_tune)
    monkeypatch.setattr(tune, "compose_tuned", lambda request: runs)
    monkeypatch.setattr(compose, "compose_runs", lambda request: runs)
    monkeypatch.setattr(grid, "run_grid", fake_sweep)
    monkeypatch.setattr(page, "main", lambda argv: steps.calls.append(("report", *argv)) or 0)
    return steps


def run(steps, tmp_path, *more):
    return commands.study([str(steps.study), "--work", str(tmp_path / "work"), *more])


def test_the_page_is_of_the_studys_own_runs(steps, tmp_path):
    assert run(steps, tmp_path, "--baseline", "none") == 0
    folder = tmp_path / "work/studies/mine"
    assert steps.calls == [
        ("tune", folder),
        ("sweep", folder),
        (
            *("report", str(folder / "toy"), "--study", str(steps.study)),
            *("--baseline", "none", "--format", "latex", "--out", str(folder / "page")),
        ),
    ]


def test_a_study_without_tuning_is_run_as_it_is(steps, tmp_path):
    steps.study.write_text("experiment: toy\n")
    assert run(steps, tmp_path) == 0
    assert [call[0] for call in steps.calls] == ["sweep", "report"]


def test_the_page_is_written_where_it_is_asked_for(steps, tmp_path):
    assert run(steps, tmp_path, "--out", "the page") == 0
    assert steps.calls[-1][-2:] == ("--out", "the page")
    assert "--baseline" not in steps.calls[-1]  # the report finds it


@pytest.mark.parametrize("failed", ["tune", "sweep"])
def test_nothing_follows_a_step_that_fails(failed, steps, tmp_path):
    steps.status[failed] = 1
    assert run(steps, tmp_path) == 1
    assert steps.calls[-1][0] == failed


@pytest.mark.parametrize(
    ("flag", "calls"), [("--status", ["tune", "sweep"]), ("--dry-run", ["tune"])]
)
def test_a_look_at_the_study_writes_no_page(flag, calls, steps, tmp_path):
    """A dry run does not know the choice, and therefore not the runs of the study."""
    assert run(steps, tmp_path, flag) == 0
    assert [call[0] for call in steps.calls] == calls
