"""A grid of runs, several in parallel; it can be stopped and restarted at any time."""

from __future__ import annotations

from collections.abc import Sequence

from norm_lab.config.options import LOCAL, Request
from norm_lab.config.spec import RunSpec
from norm_lab.engine.execution import print_commands
from norm_lab.engine.jobs import count_jobs, run_here
from norm_lab.engine.overview import overview, show_progress
from norm_lab.engine.slurm import run_by_slurm
from norm_lab.engine.state import DIVERGED, DONE, state_of


def run_grid(request: Request, specs: Sequence[RunSpec]) -> int:
    """Run the unfinished runs of a grid; return 0 if all are done or diverged, else 1."""
    jobs = count_jobs(request, specs)
    if request.status:
        print(overview(specs, jobs))
        return 0
    if request.dry_run:
        for spec in specs:
            print_commands(spec)
        return 0
    skipped = (DONE,) if request.retry else (DONE, DIVERGED)
    left = [number for number, spec in enumerate(specs) if state_of(spec).state not in skipped]
    if left:
        with show_progress(specs, jobs, left):
            if request.launcher == LOCAL:
                run_here(request, [specs[number] for number in left], jobs)
            else:
                run_by_slurm(request, [specs[number] for number in left])
    print(overview(specs, jobs))
    return int(any(state_of(spec).state not in (DONE, DIVERGED) for spec in specs))
