"""The verb ``queue``: units of runs that share a GPU, for a machine that is lent for minutes.

The file lists units in the order of their worth. Each is the first ``runs`` runs of a declared
study, of which up to ``jobs`` share the GPU:

    - {study: ptb_table2, runs: 8, jobs: 8, minutes: 7}

``--prepare``, before, prepares and binarizes the data of all units, so that only --work/data need
travel. On the machine, each unit with runs that have no result begins if its minutes are left. It
is timed for 20 seconds; if its runs would not end in time, the last run of the declared order is
dropped, and the others are timed again. A run that is dropped, or not done at the end, leaves
nothing but a line in ``queue.log``. After each unit, --results is packed into ``results.tar.gz``:
unpack it before the next window, which goes on with the next unit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from norm_lab.config.compose import compose_runs
from norm_lab.config.options import Request
from norm_lab.config.spec import RunSpec
from norm_lab.config.studies import checked, read_yaml
from norm_lab.engine.failure import has_result
from norm_lab.engine.grid import start_job, written
from norm_lab.engine.stages import data_command, data_key
from norm_lab.engine.state import prepared_file, read_status
from norm_lab.paths import CONFIGS, ROOT
from norm_plugin.io.command_line import CommandError, at_least
from norm_plugin.io.files import write_text

QUEUE = CONFIGS / "queue" / "gpu.yaml"
TIMED = 20.0  # seconds
SCORING = 45.0  # seconds that averaging, translating and scoring may take
MINUTE = 60.0
IN_FLOAT32 = "++common.bf16=false"  # fairseq's CPU trainings have no other precision
SHORT = ("++optimization.max_update=60", "++dataset.max_tokens=1024")  # whatever a study sets


@dataclass
class Unit:
    """Runs of a study that share a GPU.

    Attributes:
        study: the name of the study.
        runs: how many runs of its declared order should have a result.
        jobs: how many of them run at once.
        minutes: in which they should end; the unit does not begin with less.
    """

    study: str
    runs: int
    jobs: int
    minutes: float


def read_queue(path: Path) -> list[Unit]:
    """Return the units of a file; CommandError if it is wrong."""
    return [checked(Unit, each, str(path)) for each in read_yaml(path)]


class Progress:
    """The share of a run that is done, at two times."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.first: tuple[float, float] | None = None

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the training still needs; None until it is timed long enough."""
        status = read_status(self.spec.folder)
        if status.stage != "train" or not status.share:
            return 0.0 if status.stage not in ("", "prepare", "train") else None
        if self.first is None:
            self.first = now, status.share
        start, share = self.first
        if now - start < TIMED or status.share <= share:
            return None
        return (1 - status.share) * (now - start) / (status.share - share)


class Running:
    """The running jobs of a unit, in the declared order.

    Args:
        jobs: a spec and its process each.
        end: when the unit must be done, as ``clock`` says it.
        say: called with each line of the log.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[RunSpec, subprocess.Popen[bytes]]],
        end: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs, self.end, self.say, self.clock = list(jobs), end, say, clock
        self.progress = {spec.name: Progress(spec) for spec, _ in jobs}

    def look(self) -> bool:
        """Drop a run if the runs would not end in time; return whether any is running."""
        for spec, process in list(self.jobs):
            if process.poll() is not None:
                self.jobs.remove((spec, process))
                done = has_result(spec)
                self.say(f"{spec.name}: {'done' if done else 'failed, see its logs'}")
        now = self.clock()
        lefts = [self.progress[spec.name].seconds_left(now) for spec, _ in self.jobs]
        if self.jobs and now >= self.end:
            self.drop("its time was over")
        elif self.jobs and all(left is not None for left in lefts):
            longest = max(left for left in lefts if left is not None)
            if longest and now + longest + SCORING > self.end:
                self.drop(f"it would have needed {longest + SCORING:.0f} s more")
                self.progress = {spec.name: Progress(spec) for spec, _ in self.jobs}
        return bool(self.jobs)

    def drop(self, why: str) -> None:
        """End the last run of the declared order, and remove what it has left."""
        spec, process = self.jobs.pop()
        process.terminate()
        process.wait()
        shutil.rmtree(spec.folder, ignore_errors=True)
        self.say(f"{spec.name}: dropped, {why}")


def runs_of(unit: Unit, request: Request, quick: bool, on_cpu: bool) -> list[RunSpec]:
    """Return the runs of a unit, on a CPU in float32."""
    overrides = (*([IN_FLOAT32] if on_cpu else []), *(SHORT if quick else ()))
    request = replace(request, experiment=unit.study, overrides=overrides, smoke=quick)
    return compose_runs(request)[: unit.runs]


def prepare(units: Sequence[Unit], request: Request, quick: bool) -> None:
    """Prepare the data of all units, for a machine that does not have the raw text."""
    for unit in units:
        folders = {spec.data: spec for spec in runs_of(unit, request, quick, on_cpu=True)}
        for folder, spec in folders.items():
            folder.parent.mkdir(parents=True, exist_ok=True)
            if subprocess.run(data_command(spec), cwd=ROOT).returncode:
                raise CommandError(f"{unit.study}: its data cannot be prepared, see above")
            options = dict(spec.preparation.options)
            options.pop("raw", None)  # there, the command has no --raw
            there = replace(spec, preparation=replace(spec.preparation, options=options))
            write_text(prepared_file(there), f"{data_key(there)}\n")


def run_unit(unit: Unit, specs: Sequence[RunSpec], end: float, say: Callable[[str], None]) -> None:
    """Run the runs of a unit that have no result, until ``end`` of the monotonic clock."""
    left = [spec for spec in specs if not has_result(spec)][: unit.jobs]
    threads = str(max(len(os.sched_getaffinity(0)) // max(len(left), 1), 1))
    environment = {"OMP_NUM_THREADS": threads}
    running = Running(
        [(spec, start_job(spec.folder, environment)) for spec in written(left)], end, say
    )
    while running.look():
        time.sleep(1)


def pack(results: Path, target: Path) -> None:
    """Pack the results so far into one file, atomically."""
    part = target.with_suffix(".part")
    with tarfile.open(part, "w:gz") as archive:
        archive.add(results, arcname=results.name)
    os.replace(part, target)


def lines_to(log: Path) -> Callable[[str], None]:
    """Return a function that prints a line and appends it to a file."""

    def say(line: str) -> None:
        print(line, flush=True)
        with open(log, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    return say


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0, also if runs were dropped, which the log says."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin queue",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, nargs="?", default=QUEUE, help="default: configs/queue/gpu.yaml")
    add("--minutes", type=at_least(1), default=9, metavar="N", help="default: %(default)s")
    add("--work", type=Path, default=ROOT / "work" / "queue", metavar="DIR")
    add("--results", type=Path, metavar="DIR", help="default: results in --work")
    add("--prepare", action="store_true", help="prepare the data of all units, and end")
    add("--quick", action="store_true", help="try it: tiny models, two runs per unit, on a CPU")
    args = parser.parse_args(argv)
    end = time.monotonic() + MINUTE * args.minutes
    work = Path(os.path.abspath(args.work))
    results = Path(os.path.abspath(args.results or work / "results"))
    results.mkdir(parents=True, exist_ok=True)
    units = read_queue(args.file)
    if args.quick:
        units = [replace(unit, runs=2, jobs=2, minutes=1) for unit in units]
    request = Request("", grid=True, work=work, results=results)
    if args.prepare:
        prepare(units, request, args.quick)
        return 0
    say = lines_to(results / "queue.log")
    for unit in units:
        specs = runs_of(unit, request, args.quick, on_cpu=args.quick)
        if all(has_result(spec) for spec in specs):
            continue
        left = end - time.monotonic()
        if left < MINUTE * unit.minutes:
            say(f"{unit.study}: not begun, {left / MINUTE:.1f} of {unit.minutes:g} minutes left")
            continue
        begin = time.monotonic()
        whole = MINUTE * (2 if args.quick else unit.minutes)
        run_unit(unit, specs, min(end, begin + whole), say)
        say(f"{unit.study}: {time.monotonic() - begin:.0f} s")
        pack(results, work / "results.tar.gz")
    return 0
