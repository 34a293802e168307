"""How a run stands: its lock, stamps and status, its progress, and the losses in its log.

The process that supervises runs imports this, so it needs neither torch nor pandas.
"""

from __future__ import annotations

import argparse
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

from norm_plugin.commands.command_line import CommandError, read_lines, write_text
from norm_plugin.experiments.spec import RunSpec, data_key, has_content, run_stages

STATUS_FILE = "status.json"
RUNNING, DONE, FAILED, DIVERGED = "running", "done", "failed", "diverged"
WAITING, STOPPED = "waiting", "stopped"


def read_stamp(path: Path) -> str | None:
    """The text of a stamp; None where there is none, or a power cut left it empty or zeros."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return None if not text or "\0" in text else text


class Stamps:
    """The stamps in a folder: ``NAME`` of a finished stage, with a key of all that it rests on,
    ``NAME.started`` of one begun, ``NAME.diverged`` of one that need not be tried again,
    ``NAME.sources`` of the user's files that it rests on, ``NAME.seconds`` of what it took, and
    ``NAME.memory`` of its peak memory in bytes, the largest of all its attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> str | None:
        """The text of a stamp; the key under which a stage was finished."""
        return read_stamp(self.folder / name)

    def write(self, name: str, text: str) -> None:
        """Replace a stamp, whole or not at all."""
        write_text(self.folder / name, f"{text}\n")

    def begun(self, name: str) -> str | None:
        """The key under which a stage was finished, or else begun; None for neither."""
        return self.read(name) or self.read(f"{name}.started")

    def begin(self, name: str, key: str, later: Iterable[str]) -> None:
        """From now on the stage and the ``later`` ones, which rest on it, are not done."""
        for each in (name, *later, f"{name}.diverged"):
            (self.folder / each).unlink(missing_ok=True)
        if self.read(f"{name}.started") != key:
            (self.folder / f"{name}.memory").unlink(missing_ok=True)
        self.write(f"{name}.started", key)

    def finish(self, name: str, seconds: float) -> None:
        """The stage that was begun is done."""
        self.write(f"{name}.seconds", f"{seconds:.0f}")
        os.replace(self.folder / f"{name}.started", self.folder / name)

    def measured(self, name: str, memory: int) -> None:
        """A command of the stage has taken so many bytes."""
        self.write(f"{name}.memory", str(max(memory, int(self.read(f"{name}.memory") or 0))))

    def diverged(self, name: str, key: str) -> str | None:
        """Why a stage diverged under ``key``; None where it did not."""
        stored_key, _, reason = (self.read(f"{name}.diverged") or "").partition("\n")
        return reason if reason and stored_key == key else None


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Attributes:
        state: running, done, failed or diverged; for a reader also waiting (never started) and
            stopped (it was running, and its process is gone).
        stage: the one that is going on, or in which the run ended.
        share: of that stage, from 0 to 1.
        left: seconds that are left of the run, as far as they are known.
        text: how far it has come, ``900 of 2,000 updates``.
        reason: why it failed or diverged.
        log: the file with the output of the stage.
        seconds: that the run has taken since it was last started.
        updated: when this was written, in seconds since 1970.
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
    """Replace the status of the run in a folder, whole or not at all."""
    content = asdict(replace(status, updated=time.time()))
    write_text(run / STATUS_FILE, json.dumps(content, indent=2) + "\n")


def read_status(run: Path) -> Status:
    """The status of the run in a folder; one whose process is gone is stopped.

    A file that a power cut has left empty or damaged counts as absent.
    """
    try:
        status = Status(**json.loads((run / STATUS_FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):  # no JSON, or not that of a Status
        return Status(WAITING)
    if status.state == RUNNING and not is_locked(run):
        return replace(status, state=STOPPED, left=None)
    return status


def is_prepared(spec: RunSpec) -> bool:
    """Whether the data was prepared by the command of this run, and is there."""
    stamp = read_stamp(spec.data.with_name(f"{spec.data.name}.prepared"))
    return (spec.data / "bin").is_dir() and stamp == data_key(spec)  # bin/ is made whole


def is_finished(spec: RunSpec) -> bool:
    """Whether every stage was done with these settings and this data."""
    stamps = Stamps(spec.stages)
    return all(
        stamps.read(stage.name) == stage.key and has_content(stage.product)
        for stage in run_stages(spec)
    )


def state_of(spec: RunSpec) -> Status:
    """How a run stands with these settings and this data."""
    status = read_status(spec.folder)
    if status.state == RUNNING:
        return status
    if is_finished(spec):
        return Status(DONE, seconds=status.seconds)
    train = run_stages(spec)[0]
    reason = Stamps(spec.stages).diverged(train.name, train.key)
    if reason is not None:
        return replace(status, state=DIVERGED, reason=reason)
    # what has ended with other settings or data says nothing of this run
    return Status(WAITING) if status.state in (DONE, DIVERGED) else status


def usual_seconds(spec: RunSpec, stages: Iterable[str]) -> float | None:
    """The mean time of stages together in the runs of an experiment; None where one is unknown."""
    total = 0.0
    for stage in stages:
        stamps = map(read_stamp, spec.folder.parent.glob(f"*/stages/{stage}.seconds"))
        times = [float(text) for text in stamps if text is not None]
        if not times:
            return None
        total += sum(times) / len(times)
    return total


# --- one process at a time works in a folder -----------------------------------------------------

# is_locked holds the lock for a moment, which must not stop a run that begins just then.
ATTEMPTS, BETWEEN = 5, 0.05  # seconds


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[int]:
    """Hold the lock of ``folder``; gives its file descriptor, for children to hold it too.

    The system releases it when the last process that holds it has ended, however that ends.
    Raises CommandError where another process holds it.
    """
    with open(folder / "lock", "a") as stream:
        for attempt in range(ATTEMPTS):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == ATTEMPTS - 1:
                    raise CommandError(
                        f"{folder} is in use: {what} is going on elsewhere"
                    ) from error
                time.sleep(BETWEEN)
        yield stream.fileno()


def is_locked(folder: Path) -> bool:
    """Whether a process works in ``folder`` at this moment."""
    try:
        with open(folder / "lock") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


# --- how far a run is, and how that is shown -----------------------------------------------------

UPDATES = re.compile(r"\bnum_updates\W+(\d+)")
POSITION = re.compile(r"\bepoch (\d+):\s+\d+ / (\d+)")  # a plain line: of / updates an epoch
EPOCH_END = re.compile(
    r"\btrain \| epoch (\d+) \| .*\bnum_updates (\d+)"
)  # no validation within it
STEP = 0.1  # without a terminal, a line each tenth of a stage,
LEAST = 15.0  # but not more often than each so many seconds


class Meter:
    """Counts what a stage has done. This one knows nothing.

    Attributes:
        done: items.
        total: items that are done at the end; None where it is not known.
    """

    done = 0
    total: int | None = None

    def read(self, line: str) -> None:
        """Take in a line of the stage's output."""

    def text(self) -> str:
        """What is done: ``900 of 2,000 updates``."""
        return ""


class LinesMeter(Meter):
    """Counts the lines with a certain beginning, of which there are ``total``."""

    def __init__(self, beginning: str, total: int, items: str) -> None:
        self.beginning, self.total, self.items = beginning, total or None, items

    def read(self, line: str) -> None:
        self.done += line.startswith(self.beginning)

    def text(self) -> str:
        return f"{self.done:,} of {self.total or 0:,} {self.items}" if self.done else ""


class TrainingMeter(Meter):
    """Counts the updates of ``fairseq-train`` with ``flags``.

    ``total`` are those after which it ends at the latest.
    """

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
    """Shows the stages of one run: on a terminal a bar, else a line now and then.

    The rate of a stage is that of what was done since it began here, so that a resumed training
    counts its own updates only.

    Args:
        name: of the run, at the start of each line.
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
        """A stage begins."""
        self.close()
        self.share_shown, self.last_shown = 0.0, self.clock()
        self.bars.add_task(f"{self.name}: {stage}", total=None, details="")
        if self.console.is_terminal:
            self.bars.start()
        else:
            self.say(f"{self.name}: {stage}")

    def update(self, meter: Meter, after: float | None) -> None:
        """Take over what a meter has read; ``after`` is the usual time of the stages behind it."""
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
        """The part of the stage that is done, from 0 to 1; None where it is not known."""
        (task,) = self.bars.tasks
        return min(task.completed / task.total, 1.0) if task.total and task.completed else None

    def left(self, after: float | None) -> float | None:
        """Seconds that are left of the stage, and ``after`` it; None where that is not known."""
        (task,) = self.bars.tasks
        left = task.time_remaining
        return None if left is None else left + (after or 0.0)

    def end(self, stage: str, seconds: float) -> None:
        """A stage has ended well."""
        if self.console.is_terminal:
            self.say(f"{self.name}: {stage}, {duration(seconds)}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.out(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False)

    def close(self) -> None:
        """The stage that was shown has ended."""
        if self.console.is_terminal:
            self.bars.stop()
        for task in self.bars.task_ids:
            self.bars.remove_task(task)


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``2 h 05 min``, ``7 min``, ``40 s``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


# --- the losses in the log of a training --------------------------------------------------------
#
# At the end of an epoch fairseq prints a line for the training, and one for each validation; within
# it, a line each ``--log-interval`` updates:
#
#     2026-01-01 11:59:59 | INFO | train_inner | epoch 001: 25 / 30 loss=10.5, ..., num_updates=25
#     2026-01-01 12:00:00 | INFO | train | epoch 001 | loss 10.1 | ... | num_updates 30 | ...
#     2026-01-01 12:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.8 | ...
#
# A resumed run appends to its log. An epoch that was trained twice counts as it was trained last.
# The training loss of an epoch is missing if the run was killed after it saved the checkpoint of
# that epoch and before it printed the line.

LINE = re.compile(r"\| INFO \| (train|valid|train_inner) \| epoch (\d+)(?: \||:)(.*)")
SUBSETS = ("train", "valid", "train_inner")
VALUES = ("loss", "nll_loss")
"""What is kept of a line: the criterion and the negative log-likelihood, in bits a token."""
Curves = dict[str, list[dict[str, float]]]


def curves_of_log(log: Path) -> Curves:
    """Losses by subset, in order of updates.

    Returns:
        For ``train`` (means over epochs), ``valid`` and ``train_inner`` (means since the line
        before) a list of points, each with ``epoch``, ``updates`` and those of VALUES that the line
        has and that are finite.

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
