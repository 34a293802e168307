"""The state of a run: its lock, stamps, status and progress, and the losses in its log.

The process that supervises runs imports this, so it must not import torch or pandas.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from norm_lab.experiments.spec import RunSpec, data_key, has_content, run_stages
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_lines, write_text

STATUS_FILE = "status.json"
RUNNING, DONE, FAILED, DIVERGED = "running", "done", "failed", "diverged"
WAITING, STOPPED = "waiting", "stopped"


def utc_date(seconds: float) -> str:
    """A Unix time as the date of a result: ``2026-01-31T12:00:00Z``. Such dates sort by time."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_stamp(path: Path) -> str | None:
    """The text of a stamp; None if it is missing, or if a power cut left it empty or zeros."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return None if not text or "\0" in text else text


class Stamps:
    """The stamps of a run: small files that record its stages.

    - ``NAME``: the stage is finished; the text is its key.
    - ``NAME.started``: the stage was started; the text is its key.
    - ``NAME.diverged``: the stage diverged and is not tried again: its key and the reason.
    - ``NAME.sources``: the digests of the user's files that the stage depends on.
    - ``NAME.seconds``: its duration.
    - ``NAME.memory``: its peak memory in bytes, the largest of all attempts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> str | None:
        """The text of a stamp; None if it is missing."""
        return read_stamp(self.folder / name)

    def write(self, name: str, text: str) -> None:
        """Write a stamp atomically."""
        write_text(self.folder / name, f"{text}\n")

    def begun(self, name: str) -> str | None:
        """The key with which a stage was finished or started; None if it never was."""
        return self.read(name) or self.read(f"{name}.started")

    def begin(self, name: str, key: str, later: Iterable[str]) -> None:
        """Record that a stage starts; it and the ``later`` ones are no longer finished."""
        for each in (name, *later, f"{name}.diverged"):
            (self.folder / each).unlink(missing_ok=True)
        if self.read(f"{name}.started") != key:
            (self.folder / f"{name}.memory").unlink(missing_ok=True)
        self.write(f"{name}.started", key)

    def finish(self, name: str, seconds: float) -> None:
        """Record that a stage that was started is finished."""
        self.write(f"{name}.seconds", f"{seconds:.0f}")
        os.replace(self.folder / f"{name}.started", self.folder / name)

    def measured(self, name: str, memory: int) -> None:
        """Record the peak memory of a command of the stage, in bytes."""
        self.write(f"{name}.memory", str(max(memory, int(self.read(f"{name}.memory") or 0))))

    def diverged(self, name: str, key: str) -> str | None:
        """Why a stage with this key diverged; None if it did not."""
        stored_key, _, reason = (self.read(f"{name}.diverged") or "").partition("\n")
        return reason if reason and stored_key == key else None


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes:
        state: running, done, failed or diverged. When it is read, it may also be waiting (never
            started) or stopped (it was running, and its process is gone).
        stage: the current stage, or the one in which the run ended.
        share: the finished part of that stage, from 0 to 1.
        left: an estimate of the seconds left, if known.
        text: the progress, such as ``900 of 2,000 updates``.
        reason: why it failed or diverged.
        log: the file with the output of the stage.
        seconds: the time since the run was last started.
        updated: when this was written, as a Unix time.
    """

    state: str
    stage: str = ""
    share: float | None = None
    left: float | None = None
    text: str = ""
    reason: str = ""
    log: str = ""
    seconds: float = 0.0
    updated: float = 0.0


def write_status(run: Path, status: Status) -> None:
    """Write the status of the run in a folder atomically."""
    content = asdict(replace(status, updated=time.time()))
    write_text(run / STATUS_FILE, json.dumps(content, indent=2) + "\n")


def read_status(run: Path) -> Status:
    """The status of the run in a folder; it is stopped if its process is gone.

    A file that a power cut left empty or damaged counts as missing.
    """
    try:
        status = Status(**json.loads((run / STATUS_FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):  # no JSON, or not that of a Status
        return Status(WAITING)
    if status.state == RUNNING and not is_locked(run):
        return replace(status, state=STOPPED, left=None)
    return status


def is_prepared(spec: RunSpec) -> bool:
    """Whether the data exists and was prepared by the command of this run."""
    stamp = read_stamp(spec.data.with_name(f"{spec.data.name}.prepared"))
    return (spec.data / "bin").is_dir() and stamp == data_key(spec)  # bin/ is made atomically


def is_finished(spec: RunSpec) -> bool:
    """Whether every stage is finished with these settings and this data."""
    stamps = Stamps(spec.stages)
    return all(
        stamps.read(stage.name) == stage.key and has_content(stage.product)
        for stage in run_stages(spec)
    )


def state_of(spec: RunSpec) -> Status:
    """The status of a run with these settings and this data."""
    status = read_status(spec.folder)
    if status.state == RUNNING:
        return status
    if is_finished(spec):
        return Status(DONE, seconds=status.seconds)
    train = run_stages(spec)[0]
    reason = Stamps(spec.stages).diverged(train.name, train.key)
    if reason is not None:
        return replace(status, state=DIVERGED, reason=reason)
    # the stored status is that of other settings or data
    return Status(WAITING) if status.state in (DONE, DIVERGED) else status


def usual_seconds(spec: RunSpec, stages: Iterable[str]) -> float | None:
    """The sum of the mean durations of stages in the experiment's runs; None if one is unknown."""
    total = 0.0
    for stage in stages:
        stamps = map(read_stamp, spec.folder.parent.glob(f"*/stages/{stage}.seconds"))
        times = [float(text) for text in stamps if text is not None]
        if not times:
            return None
        total += sum(times) / len(times)
    return total


# --- one process at a time works in a folder -----------------------------------------------------

# is_locked holds the lock for a moment; a run that starts just then must not fail.
LOCK_ATTEMPTS, LOCK_WAIT = 5, 0.05  # seconds


@contextmanager
def hold_lock(folder: Path, what: str) -> Iterator[int]:
    """Hold the lock of ``folder``; yields its file descriptor, which children inherit.

    The system releases the lock when the last process that holds it has ended. Raises CommandError
    if another process holds it.
    """
    with open(folder / "lock", "a") as stream:
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == LOCK_ATTEMPTS - 1:
                    raise CommandError(
                        f"{folder} is in use: {what} is going on elsewhere"
                    ) from error
                time.sleep(LOCK_WAIT)
        yield stream.fileno()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of ``folder``."""
    try:
        with open(folder / "lock") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


# --- the progress of a run -----------------------------------------------------------------------

UPDATES = re.compile(r"\bnum_updates\W+(\d+)")
POSITION = re.compile(r"\bepoch (\d+):\s+\d+ / (\d+)")  # the second number: updates per epoch
EPOCH_END = re.compile(r"\btrain \| epoch (\d+) \| .*\bnum_updates (\d+)")
STEP = 0.1  # without a terminal, a line is printed after each tenth of a stage,
LEAST = 15.0  # but at most one in so many seconds


class Meter:
    """Measures the progress of a stage. The base class measures nothing.

    Attributes:
        done: the number of finished items.
        total: the number of all items; None if unknown.
    """

    done = 0
    total: int | None = None

    def read(self, line: str) -> None:
        """Read a line of the stage's output."""

    def text(self) -> str:
        """The progress, such as ``900 of 2,000 updates``."""
        return ""


class LinesMeter(Meter):
    """Counts the lines that start with ``beginning``, up to ``total``."""

    def __init__(self, beginning: str, total: int, items: str) -> None:
        self.beginning, self.total, self.items = beginning, total or None, items

    def read(self, line: str) -> None:
        self.done += line.startswith(self.beginning)

    def text(self) -> str:
        return f"{self.done:,} of {self.total or 0:,} {self.items}" if self.done else ""


class TrainingMeter(Meter):
    """Counts the updates of ``fairseq-train`` with ``flags``; ``total`` is their maximum."""

    def __init__(self, flags: Sequence[str]) -> None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for flag in ("--max-update", "--max-epoch", "--patience"):
            parser.add_argument(flag, type=int, default=0)
        self.limits, _ = parser.parse_known_args(list(flags))
        self.total = self.limits.max_update or None

    def read(self, line: str) -> None:
        position, end = POSITION.search(line), EPOCH_END.search(line)
        if position:
            self._plan(int(position[2]))
        elif end:
            self._plan(math.ceil(int(end[2]) / int(end[1])))
        updates = UPDATES.search(line)
        if updates is not None:
            self.done = int(updates[1])

    def _plan(self, updates_an_epoch: int) -> None:
        if self.limits.max_epoch > 0:
            by_epochs = self.limits.max_epoch * updates_an_epoch
            self.total = min(self.limits.max_update or by_epochs, by_epochs)

    def text(self) -> str:
        if not self.done:
            return ""
        most = "at most " if self.limits.patience > 0 else ""
        of = "" if self.total is None else f" of {most}{self.total:,}"
        return f"{self.done:,}{of} updates"


class Screen:
    """Shows the progress of one run: a bar on a terminal, otherwise a line now and then.

    The speed of a stage is measured since it started in this process, so a resumed training counts
    only its new updates.

    Args:
        name: the name of the run, at the start of each line.
    """

    def __init__(
        self,
        name: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.clock = name, clock
        self.console = Console(file=stream)
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[details]}", markup=False),
            console=self.console,
            get_time=clock,
            speed_estimate_period=math.inf,
            transient=True,
        )
        self.share_shown, self.last_shown = 0.0, 0.0

    def begin(self, stage: str) -> None:
        """Show that a stage begins."""
        self.close()
        self.share_shown, self.last_shown = 0.0, self.clock()
        self.bars.add_task(f"{self.name}: {stage}", total=None, details="")
        if self.console.is_terminal:
            self.bars.start()
        else:
            self.say(f"{self.name}: {stage}")

    def update(self, meter: Meter, after: float | None) -> None:
        """Show the progress of a meter.

        Args:
            after: the usual duration of the later stages, in seconds; None if unknown.
        """
        (task,) = self.bars.tasks
        self.bars.update(task.id, completed=meter.done, total=meter.total)
        left = self.left(after)
        known = "this stage" if after is None else "the run"
        details = [meter.text()] if meter.text() else []
        details += [] if left is None else [f"{duration(left)} left of {known}"]
        self.bars.update(task.id, details=", ".join(details))
        if self.console.is_terminal or self.clock() - self.last_shown < LEAST:
            return
        share = self.share()
        if share is not None and share >= self.share_shown + STEP:
            self.share_shown, self.last_shown = share, self.clock()
            self.say(f"{task.description}  {100 * share:3.0f} %  {task.fields['details']}")

    def share(self) -> float | None:
        """The finished part of the stage, from 0 to 1; None if unknown."""
        (task,) = self.bars.tasks
        return min(task.completed / task.total, 1.0) if task.total and task.completed else None

    def left(self, after: float | None) -> float | None:
        """The seconds left of the stage and of those ``after`` it; None if unknown."""
        (task,) = self.bars.tasks
        left = task.time_remaining
        return None if left is None else left + (after or 0.0)

    def end(self, stage: str, seconds: float) -> None:
        """Show that a stage has ended, and its duration."""
        if self.console.is_terminal:
            self.say(f"{self.name}: {stage}, {duration(seconds)}")

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.out(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False)

    def close(self) -> None:
        """Remove the bar of the current stage."""
        if self.console.is_terminal:
            self.bars.stop()
        for task in self.bars.task_ids:
            self.bars.remove_task(task)


def duration(seconds: float) -> str:
    """A duration in words: ``2 h 05 min``, ``7 min``, ``40 s``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


# --- the losses in the log of a training --------------------------------------------------------
#
# fairseq prints a line every ``--log-interval`` updates, and at the end of an epoch one for the
# training and one for each validation:
#
#     2026-01-01 11:59:59 | INFO | train_inner | epoch 001: 25 / 30 loss=10.5, ..., num_updates=25
#     2026-01-01 12:00:00 | INFO | train | epoch 001 | loss 10.1 | ... | num_updates 30 | ...
#     2026-01-01 12:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.8 | ...
#
# A resumed run appends to its log. Of an epoch that was trained twice, the last line counts. The
# training loss of an epoch is missing if the run was killed after it had saved the checkpoint of
# that epoch and before it printed the line.

LINE = re.compile(r"\| INFO \| (train|valid|train_inner) \| epoch (\d+)(?: \||:)(.*)")
SUBSETS = ("train", "valid", "train_inner")
VALUES = ("loss", "nll_loss")
"""The values that are read: the criterion and the negative log-likelihood, in bits per token."""
Curves = dict[str, list[dict[str, float]]]


def curves_of_log(log: Path) -> Curves:
    """The losses of each subset, in order of updates.

    Returns:
        for ``train`` (means over epochs), ``valid`` and ``train_inner`` (means since the previous
        line) a list of points with ``epoch``, ``updates`` and the finite ones of VALUES.

    Raises:
        CommandError: the file cannot be read.
    """
    curves: dict[str, dict[int, dict[str, float]]] = {subset: {} for subset in SUBSETS}
    for line in read_lines(log):
        match = LINE.search(line)
        if match:
            point = _point(int(match[2]), match[3])
            if "updates" in point:
                curves[match[1]][int(point["updates"])] = point
    return {subset: [points[key] for key in sorted(points)] for subset, points in curves.items()}


def _point(epoch: int, text: str) -> dict[str, float]:
    """A point of a curve from ``key value`` pairs between bars, or ``key=value`` between commas."""
    pairs = r"(\w+) (\S+)(?= \||$)" if " | " in text else r"(\w+)=([^,\s]+),"
    fields = dict(re.findall(pairs, text.strip()))
    point: dict[str, float] = {"epoch": epoch}
    if "num_updates" in fields:
        point["updates"] = int(fields["num_updates"])
    values = {key: float(fields[key]) for key in VALUES if key in fields}
    return point | {key: value for key, value in values.items() if math.isfinite(value)}
