#!/usr/bin/env python3
"""Passes on what fairseq-train prints, and says now and then how much time is left.

    fairseq-train ... | scripts/progress.py --runs work/runs/EXPERIMENT -- FLAGS OF FAIRSEQ-TRAIN

The rate is that of the updates seen here, validation and saving included. The stages after the
training are counted in where an earlier run of the experiment has measured them. fairseq's whole
configuration, one line of 15,000 characters, is left out; the result of the run holds it.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

SETTINGS = "{'_name': None, 'common'"
UPDATES = re.compile(r"\bnum_updates\W+(\d+)")
POSITION = re.compile(r"\bepoch (\d+):\s+\d+ / (\d+)")  # a plain line: of / updates an epoch
EPOCH_END = re.compile(r"\bepoch (\d+) \| .*\bnum_updates (\d+)")
STAGES_AFTER = ("average", "generate", "score")
STEP = 0.02  # an estimate each two hundredths of the training


class Training:
    """What is known of a training from its flags and the lines read so far.

    Args:
        flags: those of fairseq-train.
        after: seconds of the stages that follow; None where nobody has measured them.
    """

    def __init__(self, flags: list[str], after: float | None, clock: Callable[[], float]) -> None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for flag in ("--max-update", "--max-epoch", "--patience"):
            parser.add_argument(flag, type=int, default=0)
        self.limits, _ = parser.parse_known_args(flags)
        self.after = after
        self.clock = clock
        self.an_epoch: int | None = None  # updates
        self.start: tuple[int, float] | None = None  # updates and time at the first sight
        self.reported = 0.0

    def planned(self) -> int | None:
        """The updates after which the training ends at the latest; None where that is open."""
        ends = [self.limits.max_update] if self.limits.max_update > 0 else []
        if self.limits.max_epoch > 0 and self.an_epoch:
            ends.append(self.limits.max_epoch * self.an_epoch)
        return min(ends, default=None)

    def read(self, line: str) -> str | None:
        """Take in a line; returns an estimate when it is time for one."""
        position, end = POSITION.search(line), EPOCH_END.search(line)
        if position:
            self.an_epoch = int(position[2])
        elif end:
            self.an_epoch = -(-int(end[2]) // int(end[1]))
        found = UPDATES.search(line)
        if found is None:
            return None
        updates, now = int(found[1]), self.clock()
        if self.start is None:
            self.start = (updates, now)
        planned = self.planned()
        if planned is None or updates <= self.start[0]:
            return None
        if updates / planned < self.reported + STEP:
            return None
        self.reported = updates / planned
        rate = (updates - self.start[0]) / max(now - self.start[1], 1e-9)
        return self.estimate(updates, planned, rate)

    def estimate(self, updates: int, planned: int, rate: float) -> str:
        """One line: what is done, and what is left of the whole script."""
        left = max(planned - updates, 0) / rate
        done = f"{updates:,} of {planned:,} updates"
        most = "at most " if self.limits.patience > 0 else ""
        if self.after is None:
            later = "then average, generate and score, not measured yet"
            return f"progress: {done}; {most}{duration(left)} left of the training, {later}"
        return f"progress: {done}; {most}{duration(left + self.after)} left of the whole script"


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``2 h 05 min``, ``7 min``, ``40 s``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def seconds_after(runs: Path) -> float | None:
    """The mean time of the later stages in the finished runs of a folder; None without one."""
    total = 0.0
    for stage in STAGES_AFTER:
        times = [float(path.read_text()) for path in runs.glob(f"*/stages/{stage}.seconds")]
        if not times:
            return None
        total += sum(times) / len(times)
    return total


def annotate(lines: Iterable[str], training: Training) -> Iterator[str]:
    """The lines without fairseq's settings, with estimates among them."""
    for line in lines:
        if SETTINGS in line:
            continue
        yield line
        estimate = training.read(line)
        if estimate is not None:
            yield f"{estimate}\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, required=True, metavar="DIR", help="the runs of the experiment"
    )
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="after --: those of fairseq-train")
    args = parser.parse_args()
    flags = [flag for flag in args.flags if flag != "--"]
    training = Training(flags, seconds_after(args.runs), time.monotonic)
    for line in annotate(sys.stdin, training):
        print(line, end="", flush=True)


if __name__ == "__main__":
    main()
