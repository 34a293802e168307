"""``norm-plugin demo``: which runs it asks for, and how many at once."""

from __future__ import annotations

import os

import pytest

from norm_lab import commands
from norm_lab.config import compose
from norm_lab.engine import grid


@pytest.mark.parametrize(
    ("argv", "overrides"),
    [
        ([], {"norm": "layernorm,adanorm,powernorm,none", "preset": "demo"}),
        (["--norm-type", "rmsnorm"], {"norm": "rmsnorm", "preset": "demo"}),
    ],
)
def test_the_runs_share_the_cores_with_one_thread_each(argv, overrides, tmp_path, monkeypatch):
    requests = []
    monkeypatch.setattr(compose, "compose_runs", lambda asked: requests.append(asked) or [None] * 4)
    monkeypatch.setattr(grid, "run_grid", lambda request, _: requests.append(request) or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    assert commands.demo([*argv, "--work", str(tmp_path)]) == 1  # no page of runs that failed
    asked, run = requests
    assert (asked.experiment, asked.overrides) == ("toy", overrides)
    assert (run.jobs, run.threads) == (3, 1)
