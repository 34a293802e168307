"""The state of a run in ``<run>/status.json``, for the view of a sweep and for a person."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from norm_plugin.commands.command_line import write_text
from norm_plugin.experiments.locking import is_locked

FILE = "status.json"
RUNNING, DONE, FAILED, DIVERGED = "running", "done", "failed", "diverged"
WAITING, STOPPED = "waiting", "stopped"


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Attributes:
        state: running, done, failed or diverged; for a reader also waiting (never started) and
            stopped (it was running, and its process is gone).
        stage: the one that is going on, or in which the run ended.
        share: of that stage, from 0 to 1.
        left: seconds that are left of the run, as far as they are known.
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
    content = {**asdict(status), "updated": time.time()}
    write_text(run / FILE, json.dumps(content, indent=2) + "\n")


def read_status(run: Path) -> Status:
    """The status of the run in a folder; one whose process is gone is stopped.

    A file that a power cut has left empty or damaged counts as absent.
    """
    try:
        status = Status(**json.loads((run / FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):  # no JSON, or not that of a Status
        return Status(WAITING)
    if status.state == RUNNING and not is_locked(run):
        return Status(**{**asdict(status), "state": STOPPED, "left": None})
    return status
