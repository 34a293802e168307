"""The state of a run, as its folder records it: stamps of its stages, its status and its lock.

The process that supervises runs imports this, so it must not import torch or pandas.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from norm_lab.config.spec import RunSpec
from norm_lab.engine.stages import data_key, has_content, run_stages
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import write_text

STATUS_FILE = "status.json"
RUNNING, DONE, FAILED, DIVERGED = "running", "done", "failed", "diverged"
WAITING, STOPPED = "waiting", "stopped"


def utc_date(seconds: float) -> str:
    """Return a Unix time as the date of a result, ``2026-01-31T12:00:00Z``; sorts by time."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_stamp(path: Path) -> str | None:
    """Return the text of a stamp; None if it is missing, or left empty by a power cut."""
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
    - ``NAME.memory``: its peak memory in bytes, the maximum over all attempts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> str | None:
        """Return the text of a stamp; None if it is missing."""
        return read_stamp(self.folder / name)

    def write(self, name: str, text: str) -> None:
        """Write a stamp atomically."""
        write_text(self.folder / name, f"{text}\n")

    def begun(self, name: str) -> str | None:
        """Return the key with which a stage was finished or started; None if it never was."""
        return self.read(name) or self.read(f"{name}.started")

    def begin(self, name: str, key: str, later: Iterable[str]) -> None:
        """Record that a stage starts; it and the ``later`` ones are no longer finished."""
        for each in (name, *later, f"{name}.diverged"):
            (self.folder / each).unlink(missing_ok=True)
        if self.read(f"{name}.started") != key:
            (self.folder / f"{name}.memory").unlink(missing_ok=True)
        self.write(f"{name}.started", key)

    def finish(self, name: str, seconds: float) -> None:
        """Record that a started stage is finished."""
        self.write(f"{name}.seconds", f"{seconds:.0f}")
        os.replace(self.folder / f"{name}.started", self.folder / name)

    def measured(self, name: str, memory: int) -> None:
        """Record the peak memory of a command of the stage, in bytes."""
        self.write(f"{name}.memory", str(max(memory, int(self.read(f"{name}.memory") or 0))))

    def diverged(self, name: str, key: str) -> str | None:
        """Return why a stage with this key diverged; None if it did not."""
        stored_key, _, reason = (self.read(f"{name}.diverged") or "").partition("\n")
        return reason if reason and stored_key == key else None


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes:
        state: running, done, failed or diverged. When read, it may also be waiting (never
            started) or stopped (it was running, but its process has ended).
        stage: the current stage, or the one in which the run ended.
        share: the finished share of that stage, from 0 to 1.
        left: an estimate of the remaining seconds, if known.
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
    """Return the status of the run in a folder; stopped if its process has ended.

    A file that a power cut left empty or damaged counts as missing.
    """
    try:
        status = Status(**json.loads((run / STATUS_FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):  # not JSON, or not a Status
        return Status(WAITING)
    if status.state == RUNNING and not is_locked(run):
        return replace(status, state=STOPPED, left=None)
    return status


def is_prepared(spec: RunSpec) -> bool:
    """Return whether the data exists and was prepared by the command of this run."""
    stamp = read_stamp(spec.data.with_name(f"{spec.data.name}.prepared"))
    return (spec.data / "bin").is_dir() and stamp == data_key(spec)  # bin/ is created atomically


def is_finished(spec: RunSpec) -> bool:
    """Return whether every stage is finished with these settings and this data."""
    stamps = Stamps(spec.stages)
    return all(
        stamps.read(stage.name) == stage.key and has_content(stage.product)
        for stage in run_stages(spec)
    )


def state_of(spec: RunSpec) -> Status:
    """Return the status of a run with these settings and this data."""
    status = read_status(spec.folder)
    if status.state == RUNNING:
        return status
    if is_finished(spec):
        return Status(DONE, seconds=status.seconds)
    train = run_stages(spec)[0]
    reason = Stamps(spec.stages).diverged(train.name, train.key)
    if reason is not None:
        return replace(status, state=DIVERGED, reason=reason)
    # the stored status is for other settings or data
    return Status(WAITING) if status.state in (DONE, DIVERGED) else status


def usual_seconds(spec: RunSpec, stages: Iterable[str]) -> float | None:
    """Return the sum of the stages' mean durations in the experiment; None if unknown."""
    total = 0.0
    for stage in stages:
        stamps = map(read_stamp, spec.folder.parent.glob(f"*/stages/{stage}.seconds"))
        times = [float(text) for text in stamps if text is not None]
        if not times:
            return None
        total += sum(times) / len(times)
    return total


# is_locked and write_run hold the lock briefly; a run that starts at that moment must not fail.
LOCK_ATTEMPTS, LOCK_WAIT = 20, 0.05  # seconds


@contextmanager
def hold_lock(folder: Path, what: str) -> Iterator[int]:
    """Hold the lock of ``folder``; yield its file descriptor, which children inherit.

    The system releases the lock when the last process that holds it has ended.

    Raises:
        CommandError: another process holds the lock.
    """
    with open(folder / "lock", "a") as stream:
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == LOCK_ATTEMPTS - 1:
                    raise CommandError(
                        f"{folder} is in use: {what} is running in another process"
                    ) from error
                time.sleep(LOCK_WAIT)
        yield stream.fileno()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of ``folder``."""
    try:
        with open(folder / "lock") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
