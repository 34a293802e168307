"""What a run shows: on a terminal one line that is written anew, else a line now and then."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from norm_plugin.experiments.progress import Meter, duration

STEP = 0.1  # without a terminal, a line each tenth of a stage,
LEAST = 15.0  # but not more often than each so many seconds
EACH = 0.5  # seconds between two writings of the line on a terminal
BAR = 20  # characters


class Console:
    """Shows the stages of one run.

    Args:
        name: of the run, at the start of each line.
    """

    def __init__(
        self,
        name: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.stream = sys.stdout if stream is None else stream
        self.terminal = self.stream.isatty()
        self.clock = clock
        self.shown = 0.0
        self.written = float("-inf")

    def begin(self, stage: str) -> None:
        """A stage begins."""
        self.shown = 0.0
        self.written = float("-inf") if self.terminal else self.clock()
        if self.terminal:
            self._rewrite(f"{self.name}: {stage}")
        else:
            self.say(f"{self.name}: {stage}")

    def progress(self, stage: str, meter: Meter, after: float | None) -> None:
        """Something was read of a stage; ``after`` is the usual time of the stages behind it."""
        share = meter.share()
        if self.terminal and self.clock() - self.written >= EACH:
            self.written = self.clock()
            self._rewrite(progress_line(f"{self.name}: {stage}", meter, after))
        elif self.terminal or share is None or self.clock() - self.written < LEAST:
            return
        elif share >= self.shown + STEP:
            self.shown, self.written = share, self.clock()
            self.say(progress_line(f"{self.name}: {stage}", meter, after))

    def end(self, stage: str, seconds: float) -> None:
        """A stage has ended well."""
        if self.terminal:
            self.say(f"{self.name}: {stage}, {duration(seconds)}")

    def say(self, text: str) -> None:
        """A line that stays."""
        start = "\r\033[K" if self.terminal else ""
        print(f"{start}{time.strftime('%H:%M:%S')}  {text}", file=self.stream, flush=True)

    def _rewrite(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{text[:width]}", end="", file=self.stream, flush=True)


def progress_line(name: str, meter: Meter, after: float | None) -> str:
    """``run: train  [####    ]  45 %  900 of 2,000 updates, 7 min left``."""
    parts = [name]
    share, left = meter.share(), meter.left()
    if share is not None:
        bar = "#" * round(BAR * share)
        parts.append(f"[{bar:<{BAR}}] {100 * share:3.0f} %")
    details = [meter.text()] if meter.text() else []
    if left is not None and after is not None:
        details.append(f"{duration(left + after)} left of the run")
    elif left is not None:
        details.append(f"{duration(left)} left of this stage")
    return "  ".join([*parts, ", ".join(details)]).rstrip()
