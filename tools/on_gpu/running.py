"""Runs parts one after the other, each with a log and a limit, and keeps a summary on disk."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
RUNNING, OUT_OF_TIME, INTERRUPTED = "running", "out of time", "interrupted"
BAD = (FAILED, INTERRUPTED)
"""With one of these, the command ends with status 1. A part out of time has left its rows."""
PR_SET_PDEATHSIG = 1  # of prctl
GRACE = 10.0  # seconds between asking a process to end and killing it
SHOWN = 15  # last lines of the log of a part that failed


@dataclass(frozen=True)
class Part:
    """One part of the session.

    Attributes:
        command: what is run, in the root of the checkout.
        seconds: it may take; rows that it has written by then stay.
        skip: why it cannot be run here; empty: it can.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    skip: str = ""


@dataclass
class Outcome:
    """What became of a part; ``key`` says what was run and where, to know a part that is done."""

    name: str
    status: str
    seconds: float
    reason: str
    key: str


class Interrupted(BaseException):
    """The session was asked to end."""


class Summary:
    """``summary.json``: written whole after every change, so that it is right at any moment."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        self.outcomes: dict[str, Outcome] = {}
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            self.outcomes = {one["name"]: Outcome(**one) for one in stored["parts"]}
        for one in self.outcomes.values():
            if one.status == RUNNING:  # the session before this one was killed
                one.status, one.reason = INTERRUPTED, "the session was killed"

    def put(self, outcome: Outcome) -> None:
        """Store what became of a part."""
        self.outcomes[outcome.name] = outcome
        parts = [asdict(one) for one in self.outcomes.values()]
        new = self.path.with_name(f"{self.path.name}.new")
        with open(new, "w", encoding="utf-8") as stream:
            stream.write(json.dumps({**self.facts, "parts": parts}, indent=2) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, self.path)

    def done(self, part: Part, key: str) -> bool:
        """Whether this very part has passed before."""
        found = self.outcomes.get(part.name)
        return found is not None and found.status == PASSED and found.key == key

    def lines(self) -> list[str]:
        """A line for each part."""
        width = max((len(name) for name in self.outcomes), default=0)
        return [
            f"{one.name:{width}}  {one.status:11}  {one.seconds:6.0f} s  {one.reason}".rstrip()
            for one in self.outcomes.values()
        ]


class Session:
    """Runs parts until the time is over.

    Args:
        out: the folder of the summary and the logs.
        facts: of the machine and the code, for the summary. What has passed is not repeated with
            the same ``code`` on the same kind of ``device``.
        environment: of the commands.
        deadline: on ``time.monotonic()``.
    """

    def __init__(
        self, out: Path, facts: dict[str, Any], environment: dict[str, str], deadline: float
    ) -> None:
        self.out, self.environment, self.deadline = out, environment, deadline
        self.where = [facts.get("code"), facts.get("device")]
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self.summary = Summary(out / "summary.json", facts)

    def run(self, parts: Iterable[Part]) -> int:
        """Run every part; the status to exit with."""
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            for part in parts:
                self._run_part(part)
        except (KeyboardInterrupt, Interrupted):
            print("interrupted; what was measured is on disk, the same command goes on", flush=True)
        finally:
            signal.signal(signal.SIGTERM, before)
        print("\n".join(["", *self.summary.lines(), "", f"details: {self.out}"]), flush=True)
        return int(any(one.status in BAD for one in self.summary.outcomes.values()))

    def _run_part(self, part: Part) -> None:
        key = json.dumps([*self.where, *part.command])
        if self.summary.done(part, key):
            print(f"{part.name}: passed before", flush=True)
            return
        left = self.deadline - time.monotonic()
        why = part.skip or ("no time was left" if left <= 0 else "")
        if why:
            status = SKIPPED if part.skip else OUT_OF_TIME
            self._say(Outcome(part.name, status, 0.0, why, key))
            return
        outcome = Outcome(part.name, RUNNING, 0.0, "", key)
        self.summary.put(outcome)
        print(f"{part.name}: running", flush=True)
        start = time.monotonic()
        status, reason = FAILED, ""
        try:
            status, reason = self._execute(part, min(part.seconds, left))
        except (KeyboardInterrupt, Interrupted):
            status, reason = INTERRUPTED, ""
            raise
        finally:
            seconds = round(time.monotonic() - start, 1)
            self._say(Outcome(part.name, status, seconds, reason, key))

    def _execute(self, part: Part, seconds: float) -> tuple[str, str]:
        """Status and reason of one command, whose output goes to the log."""
        log = self.out / "logs" / f"{part.name.replace(' ', '-')}.log"
        with open(log, "wb") as stream:
            try:
                process = subprocess.Popen(
                    part.command,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=self.environment,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except OSError as error:
                return FAILED, f"{part.command[0]}: {error.strerror}"
            try:
                status = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                return OUT_OF_TIME, f"ended after {seconds:.0f} s"
            finally:
                _end_group(process)
        if status == 0:
            return PASSED, ""
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(f"    {line}" for line in lines[-SHOWN:]), flush=True)
        return FAILED, f"status {status}, see {log.relative_to(self.out)}"

    def _say(self, outcome: Outcome) -> None:
        self.summary.put(outcome)
        reason = f" ({outcome.reason})" if outcome.reason else ""
        print(f"{outcome.name}: {outcome.status} in {outcome.seconds:.0f} s{reason}", flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _end_with_parent() -> None:
    """In the child: end when this process does, even if that is killed (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
