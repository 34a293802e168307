"""How far a stage is, and how much time is left of it, from the lines that it prints."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from norm_plugin.experiments.stamps import read_stamp

Clock = Callable[[], float]
"""Seconds since some moment."""
UPDATES = re.compile(r"\bnum_updates\W+(\d+)")
POSITION = re.compile(r"\bepoch (\d+):\s+\d+ / (\d+)")  # a plain line: of / updates an epoch
EPOCH_END = re.compile(
    r"\btrain \| epoch (\d+) \| .*\bnum_updates (\d+)"
)  # no validation within it


class Meter:
    """What is known of a stage that is going on.

    Attributes:
        usual: seconds that the stage took in earlier runs of the experiment; None without one.
    """

    def __init__(self, usual: float | None = None, clock: Clock = time.monotonic) -> None:
        self.usual = usual
        self.clock = clock
        self.start = clock()

    def read(self, line: str) -> None:
        """Take in a line of the stage's output."""

    def share(self) -> float | None:
        """The part that is done, from 0 to 1; None where it is not known."""
        if not self.usual:
            return None
        return min((self.clock() - self.start) / self.usual, 0.99)

    def left(self) -> float | None:
        """Seconds that are left; None where it is not known."""
        if self.usual is None:
            return None
        return max(self.usual - (self.clock() - self.start), 0.0)

    def text(self) -> str:
        """What is done, in words."""
        return ""


class LinesMeter(Meter):
    """A stage that prints one line with a certain beginning for each of ``total`` items."""

    def __init__(
        self,
        beginning: str,
        total: int,
        what: str,
        usual: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(usual, clock)
        self.beginning, self.total, self.what, self.count = beginning, total, what, 0
        self.first: float | None = None

    def read(self, line: str) -> None:
        if line.startswith(self.beginning):
            self.count += 1
            self.first = self.clock() if self.first is None else self.first

    def share(self) -> float | None:
        return min(self.count / self.total, 1.0) if self.total and self.count else super().share()

    def left(self) -> float | None:
        if self.first is None or self.count < 2 or not self.total:
            return super().left()
        each = (self.clock() - self.first) / (self.count - 1)
        return max(self.total - self.count, 0) * each

    def text(self) -> str:
        return f"{self.count:,} of {self.total:,} {self.what}" if self.count else ""


class TrainingMeter(Meter):
    """A training by ``fairseq-train``.

    The rate is that of the updates seen here, validation and saving included.

    Args:
        flags: those of the training.
    """

    def __init__(self, flags: Sequence[str], clock: Clock = time.monotonic) -> None:
        super().__init__(None, clock)
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for flag in ("--max-update", "--max-epoch", "--patience"):
            parser.add_argument(flag, type=int, default=0)
        self.limits, _ = parser.parse_known_args(list(flags))
        self.an_epoch: int | None = None  # updates
        self.first: tuple[int, float] | None = None  # updates and time at the first sight
        self.last: tuple[int, float] | None = None

    def planned(self) -> int | None:
        """The updates after which the training ends at the latest; None where that is open."""
        ends = [self.limits.max_update] if self.limits.max_update > 0 else []
        if self.limits.max_epoch > 0 and self.an_epoch:
            ends.append(self.limits.max_epoch * self.an_epoch)
        return min(ends, default=None)

    def read(self, line: str) -> None:
        position, end = POSITION.search(line), EPOCH_END.search(line)
        if position:
            self.an_epoch = int(position[2])
        elif end:
            self.an_epoch = -(-int(end[2]) // int(end[1]))
        found = UPDATES.search(line)
        if found is not None:
            self.last = (int(found[1]), self.clock())
            self.first = self.last if self.first is None else self.first

    def share(self) -> float | None:
        planned = self.planned()
        return None if planned is None or self.last is None else min(self.last[0] / planned, 1.0)

    def left(self) -> float | None:
        planned = self.planned()
        if planned is None or self.first is None or self.last is None:
            return None
        updates, seconds = (late - early for late, early in zip(self.last, self.first))
        if updates <= 0 or seconds <= 0:
            return None  # one sight is no rate
        ahead = max(planned - self.last[0], 0) * seconds / updates
        return max(ahead - (self.clock() - self.last[1]), 0.0)

    def text(self) -> str:
        if self.last is None:
            return ""
        planned = self.planned()
        most = "at most " if self.limits.patience > 0 else ""
        of = "" if planned is None else f" of {most}{planned:,}"
        return f"{self.last[0]:,}{of} updates"


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``2 h 05 min``, ``7 min``, ``40 s``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def usual_seconds(runs: Path, stage: str) -> float | None:
    """The mean time of a stage in the finished runs of a folder; None without one."""
    stamps = [read_stamp(path) for path in runs.glob(f"*/stages/{stage}.seconds")]
    times = [float(text) for text in stamps if text is not None]
    return sum(times) / len(times) if times else None
