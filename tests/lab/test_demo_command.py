"""``norm-plugin demo``: which runs it asks for, and how many at once."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from norm_lab import commands
from norm_lab.engine import composed, grid


@pytest.mark.parametrize(
    ("argv", "overrides"),
    [
        ([], ["norm=layernorm,adanorm,powernorm,none", "preset=demo"]),
        (["--norm-type", "rmsnorm"], ["preset=demo", "norm=rmsnorm"]),
    ],
)
def test_the_runs_share_the_cores_with_one_thread_each(argv, overrides, tmp_path, monkeypatch):
    requests = []
    made = SimpleNamespace(runs=[SimpleNamespace()] * 4)
    monkeypatch.setattr(composed, "compose", lambda request: requests.append(request) or made)
    monkeypatch.setattr(grid, "run_grid", lambda request, _: requests.append(request) or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    assert commands.demo([*argv, "--work", str(tmp_path)]) == 1  # no page of runs that failed
    asked, run = requests
    assert (asked.experiment, list(asked.overrides)) == ("toy", overrides)
    assert (run.jobs, run.threads) == (3, 1)
