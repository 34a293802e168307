"""Why a run failed, whether it diverged, and the record of it beside the results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.commands.command_line import CommandError, write_text
from norm_plugin.experiments.curves import curves_of_log
from norm_plugin.experiments.processes import CommandFailedError
from norm_plugin.experiments.spec import RunSpec
from norm_plugin.experiments.status import DIVERGED, FAILED, Status

# torch, fairseq and norm_plugin.models.divergence all raise it, and the loss scaler does too.
NOT_FINITE = re.compile(r"\bFloatingPointError: (?P<why>.+)")
NAN_LOSS = re.compile(r"\b(?:train|valid)\b.*\bloss (?P<why>nan|inf)\b", re.I)
SAID = re.compile(r"^error: (?P<why>.*\bdiverged\b.*)")  # by a command of this package
ERROR = re.compile(r"^(error: .+|[\w.]*(?:Error|Exception|Interrupt)\b.*)")


class RunFailedError(CommandError):
    """A run ended before its result.

    Attributes:
        state: failed or diverged.
        reason: one line.
        log: the full output of the stage.
        tail: its last lines.
    """

    def __init__(
        self, stage: str, reason: str, log: Path, tail: Sequence[str] = (), state: str = FAILED
    ) -> None:
        super().__init__(f"{stage} {state}: {reason}; full output: {log}")
        self.stage, self.reason, self.log, self.state = stage, reason, log, state
        self.tail = list(tail)


def explain(stage: str, failed: CommandFailedError, log: Path) -> RunFailedError:
    """What a command's last lines say of its failure."""
    why = divergence(failed.tail)
    if why is not None:
        return RunFailedError(stage, why, log, failed.tail, DIVERGED)
    errors = [line for line in failed.tail if ERROR.match(line)]
    reason = errors[-1].removeprefix("error: ") if errors else failed.reason
    if failed.reason.startswith("killed"):
        reason = failed.reason
    return RunFailedError(stage, reason, log, failed.tail)


def divergence(lines: Sequence[str]) -> str | None:
    """Why a training is no more finite, from what it printed; None where it does not say so."""
    for pattern in (NOT_FINITE, NAN_LOSS, SAID):
        for line in lines:
            found = pattern.search(line)
            if found:
                why = found["why"].strip()
                return f"the loss is {why}" if pattern is NAN_LOSS else why
    return None


def record_failure(spec: RunSpec, failure: RunFailedError, status: Status) -> None:
    """Write what is known of a run that has no result, with its losses as far as it came."""
    path, log = spec.failure, spec.log_of("train")
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "experiment": spec.experiment,
        "norm": f"{spec.label}{spec.variant}",
        "seed": spec.seed,
        "differs": spec.differs,
        "state": failure.state,
        "stage": failure.stage,
        "reason": failure.reason,
        "progress": status.text,
        "curves": curves_of_log(log) if log.exists() else None,
    }
    write_text(path, json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def forget_failure(spec: RunSpec) -> None:
    """The run has a result now."""
    spec.failure.unlink(missing_ok=True)
