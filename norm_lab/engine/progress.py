"""The progress of a run: how far a stage is, and how it is shown."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from norm_lab.run.flags import Configuration

UPDATES = re.compile(r"\bnum_updates\W+(\d+)")
POSITION = re.compile(r"\bepoch (\d+):\s+\d+ / (\d+)")  # the second number: updates per epoch
EPOCH_END = re.compile(r"\btrain \| epoch (\d+) \| .*\bnum_updates (\d+)")
STEP = 0.1  # without a terminal, a line is printed after each tenth of a stage,
LEAST = 15.0  # but not more often than every LEAST seconds


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
        """Return the progress, such as ``900 of 2,000 updates``."""
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
    """Counts the updates of a training; ``total`` is their maximum.

    Args:
        settings: those of the training, by fairseq's groups.
    """

    def __init__(self, settings: Configuration) -> None:
        optimization = settings["optimization"]
        self.max_update = optimization.get("max_update") or 0
        self.max_epoch = optimization.get("max_epoch") or 0
        self.may_end_early = (settings["checkpoint"].get("patience") or 0) > 0
        self.total = self.max_update or None

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
        if self.max_epoch > 0:
            by_epochs = self.max_epoch * updates_an_epoch
            self.total = min(self.max_update or by_epochs, by_epochs)

    def text(self) -> str:
        if not self.done:
            return ""
        most = "at most " if self.may_end_early else ""
        of = "" if self.total is None else f" of {most}{self.total:,}"
        return f"{self.done:,}{of} updates"


class ProgressDisplay:
    """Shows the progress of one run: a bar on a terminal, otherwise occasional lines.

    The speed of a stage is measured from its start in this process, so that a resumed training
    counts only its new updates.

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
        """Return the finished share of the stage, from 0 to 1; None if unknown."""
        (task,) = self.bars.tasks
        return min(task.completed / task.total, 1.0) if task.total and task.completed else None

    def left(self, after: float | None) -> float | None:
        """Return the seconds left in this stage and those ``after`` it; None if unknown."""
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
    """Return a duration in words: ``2 h 05 min``, ``7 min``, ``40 s``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
