"""What the folder of a run says of it: which stages are done, how it stands, and why it failed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from norm_plugin.commands.command_line import write_text
from norm_plugin.experiments.locking import is_locked
from norm_plugin.experiments.spec import RunSpec
from norm_plugin.experiments.stages import data_key, has_content, run_stages

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
