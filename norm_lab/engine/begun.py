"""The runs that were begun, from their folders; this imports no torch and composes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from norm_lab.config.experiments import is_experiment, is_of_experiment
from norm_lab.config.names import check_experiment
from norm_lab.config.spec import RUN_FILE, RunSpec
from norm_lab.config.studies import study_name, study_path
from norm_lab.engine.overview import overview
from norm_lab.engine.state import RUNNING, state_of
from norm_plugin.io.command_line import CommandError, usage_errors

INSIDE = ("", "*/", "*/*/", "runs/*/*/")
"""Where a folder may have the folders of runs: it is one, or that of an experiment, or --work."""


@usage_errors()
def begun_text(name: str, work: Path) -> str:
    """Return the status of the runs of an experiment, a study or in a folder, by their results."""
    specs = sorted(begun_runs(name, work), key=lambda spec: spec.result)
    texts = [f"no run of {name} was begun in {work / 'runs'}"] * (not specs)
    for folder, group in groupby(specs, key=lambda spec: spec.result.parent):
        runs = list(group)
        running = sum(state_of(spec).state == RUNNING for spec in runs)
        texts.append(f"{overview(runs, running)}\nresults: {folder}")
    return "\n\n".join(texts)


def begun_runs(name: str, work: Path) -> Iterator[RunSpec]:
    """Yield the runs in ``work`` of an experiment or a study, or those of a folder.

    Of a study, they are its trials and runs by ``norm-plugin study``. A folder is one of runs or of
    results.

    Raises:
        CommandError: there is no such name or folder.
    """
    folder, file = Path(os.path.abspath(name)), study_path(name)
    of_work = sorted((work / "runs").glob(f"*/*/{RUN_FILE}"))
    if is_experiment(name) or file.is_file() or not folder.is_dir():
        check_experiment(name)
        results = work / "studies" / study_name(file)
        yield from (
            spec
            for path in of_work
            for spec in _read(path)
            if is_of_experiment(path.parts[-3], name) or spec.result.is_relative_to(results)
        )
        return
    inside = [path for place in INSIDE for path in sorted(folder.glob(f"{place}{RUN_FILE}"))]
    for path in inside or of_work:
        yield from (spec for spec in _read(path) if inside or spec.result.is_relative_to(folder))


def _read(path: Path) -> Iterator[RunSpec]:
    """Yield the run of a file; say why if it cannot be read."""
    try:
        yield RunSpec.read_in_place(path.parent)
    except CommandError as error:
        print(error, file=sys.stderr)
