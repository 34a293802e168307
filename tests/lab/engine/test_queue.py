"""The verb ``queue``: which runs of a unit are dropped, and what they leave."""

from __future__ import annotations

import tarfile
from types import SimpleNamespace

import pytest

from norm_lab.config.options import Request
from norm_lab.config.studies import read_study_file, split, study_path
from norm_lab.engine import queue
from norm_lab.engine.queue import QUEUE, Running, pack, read_queue
from norm_lab.engine.state import RUNNING, Status
from norm_plugin.io.command_line import CommandError


def test_every_unit_is_of_a_declared_study_and_fits_a_window():
    units = read_queue(QUEUE)
    for unit in units:
        study = read_study_file(study_path(unit.study))
        runs = sum(len(split([*study.overrides, *arm])) for arm in study.arms)
        assert 0 < unit.runs <= runs and unit.minutes < 10
        assert study.primary
    # a later unit of a study goes on with it
    for name in {unit.study for unit in units}:
        numbers = [unit.runs for unit in units if unit.study == name]
        assert numbers == sorted(set(numbers))


def test_a_unit_with_another_key_is_refused(tmp_path):
    (tmp_path / "queue.yaml").write_text("- {study: toy, minutes: 3}")
    with pytest.raises(
        CommandError,
        match="missing mandatory value: runs.*; the keys are study, runs, jobs, minutes",
    ):
        read_queue(tmp_path / "queue.yaml")


def test_data_is_prepared_without_a_gpu_for_runs_that_need_one(tmp_path, monkeypatch):
    prepared = []
    monkeypatch.setattr(queue, "data_command", lambda spec: prepared.append(spec.data) or ["true"])
    unit = queue.Unit("iwslt15_adanorm", runs=2, jobs=2, minutes=1)  # trains in bf16
    request = Request("", grid=True, work=tmp_path / "work", results=tmp_path / "results")
    queue.prepare([unit], request, quick=False)
    assert [folder.name for folder in prepared] == ["iwslt15"]


def test_a_rehearsal_is_short_whatever_the_study_sets(tmp_path):
    unit = queue.Unit("iwslt15_adanorm", runs=1, jobs=1, minutes=1)  # 1,200 updates
    request = Request("", grid=True, work=tmp_path / "work", results=tmp_path / "results")
    (spec,) = queue.runs_of(unit, request, quick=True, on_cpu=True)
    assert spec.settings["optimization"]["max_update"] == 60


class Process:
    """A job that runs until it is terminated, or ``end`` is set."""

    def __init__(self):
        self.end = None

    def poll(self):
        return self.end

    def terminate(self):
        self.end = -15

    def wait(self):
        return self.end


@pytest.fixture
def unit(tmp_path, monkeypatch):
    """Two runs with progress that a test sets, and a clock."""
    state = SimpleNamespace(now=0.0, said=[], status={}, jobs=[])
    for name in ("first", "last"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "checkpoint.pt").write_text("weights")
        spec = SimpleNamespace(name=name, folder=folder, result=tmp_path / f"{name}.json")
        state.jobs.append((spec, Process()))
        state.status[folder] = Status(RUNNING, "train", 0.0)
    monkeypatch.setattr(queue, "read_status", lambda folder: state.status[folder])
    state.running = Running(state.jobs, 500.0, state.said.append, lambda: state.now)
    return state


def advance(unit, now, *shares, stage="train"):
    unit.now = now
    for (spec, _), share in zip(unit.jobs, shares):
        unit.status[spec.folder] = Status(RUNNING, stage, share)
    return unit.running.look()


def test_the_last_run_is_dropped_where_the_runs_would_not_end(unit):
    assert advance(unit, 10, 0.01, 0.01)
    assert advance(unit, 25, 0.02, 0.02) and unit.said == []  # not timed long enough
    # 0.02 in 20 s: 970 s more, and as many again for scoring as are reserved
    assert advance(unit, 30, 0.03, 0.03)
    assert unit.said == ["last: dropped, it would have needed 1015 s more"]
    (first, kept), (last, dropped) = unit.jobs
    assert dropped.end is not None and not last.folder.exists()
    assert kept.end is None and (first.folder / "checkpoint.pt").exists()
    # alone it is timed anew, is fast enough, and is done
    assert advance(unit, 40, 0.1) and advance(unit, 65, 0.3) and len(unit.said) == 1
    first.result.write_text('{"scores": {}}')
    kept.end = 0
    assert not unit.running.look()
    assert unit.said[1:] == ["first: done"]


def test_what_is_not_done_at_the_end_leaves_nothing(unit):
    advance(unit, 10, 0.5, 0.5, stage="generate")  # scoring is not timed
    advance(unit, 100, 0.5, 0.5, stage="generate")
    assert unit.said == []
    assert advance(unit, 500, 0.5, 0.5, stage="generate") and not advance(unit, 501, 0.5, 0.5)
    names = [f"{name}: dropped, its time was over" for name in ("last", "first")]
    assert unit.said == names
    assert not any(spec.folder.exists() for spec, _ in unit.jobs)


def test_a_failed_run_is_named(unit):
    unit.jobs[1][1].end = 1
    unit.running.look()
    assert unit.said == ["last: failed, see its logs"]


def test_results_are_one_file(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "queue.log").write_text("done")
    pack(results, tmp_path / "results.tar.gz")
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert "results/queue.log" in archive.getnames()
    assert not (tmp_path / "results.tar.part").exists()
