"""The state of a run, as its folder records it: ``status.json`` and a lock.

The process that supervises runs imports this, so it must not import torch or pandas.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from norm_lab.config.spec import RunSpec
from norm_lab.engine.stages import Stage, data_key, has_content, run_stages
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import write_json

STATUS_FILE = "status.json"
RUNNING, DONE, FAILED, DIVERGED = "running", "done", "failed", "diverged"
WAITING, STOPPED = "waiting", "stopped"


def utc_date(seconds: float) -> str:
    """Return a Unix time as the date of a result, ``2026-01-31T12:00:00Z``; sorts by time."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Record:
    """The record of a stage of a run.

    Attributes:
        key: the key with which the stage was started.
        done: whether it is finished.
        memory: the peak memory of its commands in bytes, the maximum over all attempts; 0: unknown.
        device: where the training is: cpu or gpu.
        diverged: why the training diverged; it is not tried again.
        code: the version of the code that began the training; empty: unknown.
    """

    key: str
    done: bool = False
    memory: int = 0
    device: str = ""
    diverged: str = ""
    code: Mapping[str, str] = field(default_factory=dict)


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
        seconds: the time of all executions so far.
        updated: when this was written, as a Unix time.
        stages: the record of each stage that was started, by its name.
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
    stages: Mapping[str, Record] = field(default_factory=dict)


def write_status(run: Path, status: Status) -> None:
    """Write the status of the run in a folder atomically."""
    write_json(run / STATUS_FILE, asdict(replace(status, updated=time.time())))


def read_status(run: Path) -> Status:
    """Return the status of the run in a folder; stopped if its process has ended.

    A file that a power cut left empty or damaged counts as missing.
    """
    try:
        content = json.loads((run / STATUS_FILE).read_text(encoding="utf-8"))
        stages = {name: Record(**record) for name, record in content.pop("stages").items()}
        status = Status(**content, stages=stages)
        if status.state not in (RUNNING, DONE, FAILED, DIVERGED):
            return Status(WAITING)
    except (
        *(FileNotFoundError, IsADirectoryError, NotADirectoryError),
        *(ValueError, TypeError, KeyError, AttributeError, RecursionError),  # no Status
    ):
        return Status(WAITING)
    if status.state == RUNNING and not is_locked(run):
        return replace(status, state=STOPPED, left=None)
    return status


def prepared_file(spec: RunSpec) -> Path:
    """Return the file beside the prepared data with the key of the preparation that is finished."""
    return spec.data.with_name(f"{spec.data.name}.prepared")


def is_prepared(spec: RunSpec) -> bool:
    """Return whether the data exists and was prepared by the command of this run."""
    path = prepared_file(spec)
    key = path.read_bytes() if path.is_file() else b""  # a power cut may leave any bytes
    return (spec.data / "bin").is_dir() and key == f"{data_key(spec)}\n".encode()


def is_finished(spec: RunSpec) -> bool:
    """Return whether every stage is finished with these settings and this data."""
    records = read_status(spec.folder).stages
    return all(is_done(stage, records) for stage in run_stages(spec))


def is_done(stage: Stage, records: Mapping[str, Record]) -> bool:
    """Return whether a stage is finished with its command and inputs, and has its product."""
    record = records.get(stage.name)
    return (
        record is not None
        and record.done
        and record.key == stage.key
        and has_content(stage.product)
    )


def state_of(spec: RunSpec) -> Status:
    """Return the status of a run with these settings and this data."""
    status = read_status(spec.folder)
    if status.state == RUNNING:
        return status
    if is_finished(spec):
        return Status(DONE, seconds=status.seconds)
    train = run_stages(spec)[0]
    record = status.stages.get(train.name)
    if record is not None and record.diverged and record.key == train.key:
        return replace(status, state=DIVERGED, reason=record.diverged)
    # the stored status is for other settings or data
    return Status(WAITING) if status.state in (DONE, DIVERGED) else status


# is_locked and write_run hold the lock briefly; a run that starts at that moment must not fail.
LOCK_ATTEMPTS, LOCK_WAIT = 20, 0.05  # seconds


@contextmanager
def hold_lock(folder: Path) -> Iterator[int]:
    """Hold the lock of a run's folder; yield its file descriptor, which children inherit.

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
                        f"{folder} is in use: the same run is running in another process"
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
