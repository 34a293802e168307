"""Why a run has no result, and the record of its failure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from norm_lab.config.spec import RunSpec
from norm_lab.engine.process import CommandFailedError
from norm_lab.engine.state import DIVERGED, FAILED, Status, utc_date
from norm_lab.engine.training_log import curves_of_log
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json, write_json

# raised by torch, by fairseq and its loss scaler, and by norm_plugin.models.divergence
NOT_FINITE = re.compile(r"\bFloatingPointError: (?P<reason>.+)")
NAN_LOSS = re.compile(r"\b(?:train|valid)\b.*\bloss (?P<reason>nan|inf)\b", re.I)
SAYS_DIVERGED = re.compile(r"^error: (?P<reason>.*\bdiverged\b.*)")  # a command of this package
ERROR = re.compile(r"^(error: .+|[\w.]*(?:Error|Exception|Interrupt)\b.*)")


class RunFailedError(CommandError):
    """A run failed or diverged: the stage, the reason in one line, its log and the end of it."""

    def __init__(
        self, stage: str, reason: str, log: Path, tail: Sequence[str] = (), state: str = FAILED
    ) -> None:
        super().__init__(f"{stage} {state}: {reason}; full output: {log}")
        self.stage, self.reason, self.log, self.state = stage, reason, log, state
        self.tail = list(tail)


def explain(stage: str, failed: CommandFailedError, log: Path) -> RunFailedError:
    """Return the error of a stage, with the reason found in the last lines of its output."""
    for pattern in (NOT_FINITE, NAN_LOSS, SAYS_DIVERGED):
        for match in filter(None, map(pattern.search, failed.tail)):
            said = match["reason"].strip()
            reason = f"the loss is {said}" if pattern is NAN_LOSS else said
            return RunFailedError(stage, reason, log, failed.tail, DIVERGED)
    errors = [line for line in failed.tail if ERROR.match(line)]
    reason = failed.reason
    if errors and not reason.startswith("killed"):
        reason = errors[-1].removeprefix("error: ")
    return RunFailedError(stage, reason, log, failed.tail)


def has_result(spec: RunSpec) -> bool:
    """Return whether the file of the result has scores, and not the record of a failure."""
    return spec.result.exists() and "scores" in read_json(spec.result)


def write_failure(spec: RunSpec, status: Status) -> None:
    """Record a run without a result in the place of the result: its status and losses so far.

    A result of an earlier execution stays.
    """
    if has_result(spec):
        return
    log = spec.log_of("train")
    # the key of the failure itself: a diverged training is not repeated, but recorded again
    ended = Path(status.log).stat().st_mtime if Path(status.log).is_file() else time.time()
    record = {
        "run": spec.identity(),
        "experiment": spec.experiment,
        "norm": spec.evaluated_label,
        "seed": spec.seed,
        "differs": spec.arm.changes,
        "state": status.state,
        "stage": status.stage,
        "reason": status.reason,
        "progress": status.text,
        "date": utc_date(ended),
        "curves": curves_of_log(log) if log.exists() else None,
    }
    write_json(spec.result, record, sort_keys=True)
