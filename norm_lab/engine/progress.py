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
STEP_LINE = re.compile(r"progress: (?P<step>\w+) (?P<done>\d+) of (?P<total>\d+) ?(?P<items>\w*)")
"""A line of ``norm-plugin finish``: the step, and how many of how many items, if it counts them."""
STEP = 0.1  # without a terminal, a line is printed after each tenth of a stage,
LEAST = 15.0  # but not more often than every LEAST seconds


class Meter:
    """The progress of a stage.

    Attributes:
        done: the number of finished items.
        total: the number of all items; None if unknown.
        items: what is counted.
    """

    def __init__(self, total: int | None = None) -> None:
        self.done, self.total, self.items = 0, total or None, ""

    def read(self, line: str) -> None:
        """Read a line of the stage's output."""

    def text(self) -> str:
        """Return the progress, such as ``900 of 2,000 updates``."""
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.done:,}{of} {self.items}" if self.done else ""


class TrainingMeter(Meter):
    """Counts the updates of a training; ``total`` is their maximum.

    Args:
        settings: those of the training, by fairseq's groups.
    """

    def __init__(self, settings: Configuration) -> None:
        optimization = settings["optimization"]
        super().__init__(total=optimization.get("max_update"))
        self.max_update = optimization.get("max_update") or 0
        self.max_epoch = optimization.get("max_epoch") or 0
        may_end_early = (settings["checkpoint"].get("patience") or 0) > 0
        self.items = "updates or fewer" if may_end_early else "updates"

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


class StepMeter(Meter):
    """The progress of the stage after the training, whose lines name its steps.

    Args:
        begin: called with the name of each step.
    """

    def __init__(self, begin: Callable[[str], None]) -> None:
        super().__init__()
        self.begin, self.step = begin, ""

    def read(self, line: str) -> None:
        match = STEP_LINE.match(line)
        if match is not None:
            step, self.items = match["step"], match["items"]
            self.done, self.total = int(match["done"]), int(match["total"]) or None
            if step != self.step:
                self.step = step
                self.begin(step)


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

    def begin(self, stage: str) -> None:
        """Show that a stage begins."""
        self.close()
        self.share_shown, self.last_shown, self.begun = 0.0, self.clock(), self.clock()
        self.bars.add_task(f"{self.name}: {stage}", total=None, details="")
        if self.console.is_terminal:
            self.bars.start()
        else:
            self.say(f"{self.name}: {stage}")

    def update(self, meter: Meter) -> None:
        """Show the progress of a meter."""
        (task,) = self.bars.tasks
        self.bars.update(task.id, completed=meter.done, total=meter.total)
        details = [meter.text()] if meter.text() else []
        details += [] if self.left is None else [f"{duration(self.left)} left of this stage"]
        self.bars.update(task.id, details=", ".join(details))
        if self.console.is_terminal or self.clock() - self.last_shown < LEAST:
            return
        share = self.share
        if share is not None and share >= self.share_shown + STEP:
            self.share_shown, self.last_shown = share, self.clock()
            self.say(f"{task.description}  {100 * share:3.0f} %  {task.fields['details']}")

    @property
    def share(self) -> float | None:
        """The finished share of the stage, from 0 to 1; None if unknown."""
        (task,) = self.bars.tasks
        return min(task.completed / task.total, 1.0) if task.total and task.completed else None

    @property
    def left(self) -> float | None:
        """The seconds left in this stage; None if unknown."""
        (task,) = self.bars.tasks
        return task.time_remaining

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.out(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False)

    def close(self) -> None:
        """Remove the bar of the current stage, and say how long that took."""
        for task in self.bars.tasks:
            if self.console.is_terminal:
                self.bars.stop()
                self.say(f"{task.description}, {duration(self.clock() - self.begun)}")
            self.bars.remove_task(task.id)


def duration(seconds: float) -> str:
    """Return a duration in words: ``2 h 05 min``, ``7 min``, ``40 s``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
