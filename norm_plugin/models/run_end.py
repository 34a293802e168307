"""A run that is resumed ends where it would have ended, and one that has ended trains no more.

fairseq looks at ``--max-update``, ``--stop-time-hours`` and ``--patience`` after an update only, so
a process that resumes a run which has ended, as when whoever started it could not note its end,
would train one update more. And fairseq counts the validations without a better score as attributes
of a function, so such a process would begin at 0 and train longer than one that was never stopped.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

KEY = "norm_plugin_patience"
"""Of the count among the ``extra_state`` of a checkpoint."""
COUNTED = ("best", "num_runs")
"""The attributes: the best score, and the validations since."""


def should_stop_early() -> Callable[..., bool] | None:
    """The function of fairseq that counts; None in a program that does not train.

    ``python -m fairseq_cli.train`` has it in the module of the program.
    """
    for name in ("__main__", "fairseq_cli.train"):
        function: Callable[..., bool] | None
        function = getattr(sys.modules.get(name), "should_stop_early", None)
        if function is not None:
            return function
    return None


def patience_count() -> dict[str, float] | None:
    """What was counted so far; None before the first validation with ``--patience``."""
    function = should_stop_early()
    if not all(hasattr(function, name) for name in COUNTED):
        return None
    return {name: getattr(function, name) for name in COUNTED}


def resume(trainer: Any, extra_state: Mapping[str, Any], anew: bool) -> None:
    """Count on from a checkpoint that ``trainer`` has loaded, and train no epoch if it is the end.

    Args:
        extra_state: of the checkpoint.
        anew: optimizer or meters are reset, so time and validations are those of another run.
    """
    function, cfg = should_stop_early(), trainer.cfg
    if function is not None and KEY in extra_state and not anew:
        for name in COUNTED:
            setattr(function, name, extra_state[KEY][name])
    if end := _end(trainer, extra_state, anew):
        logger.info("nothing to train: %s", end)
        cfg.optimization.max_epoch = -1  # 0 would be no limit


def _end(trainer: Any, extra_state: Mapping[str, Any], anew: bool) -> str:
    """Why the run of a checkpoint has ended; empty if it has not."""
    limits, updates = trainer.cfg.optimization, trainer.get_num_updates()
    if 0 < limits.max_update <= updates:
        return f"{updates} updates are done, and --max-update is {limits.max_update}"
    if anew:
        return ""
    # As stored, which is the same for all workers
    hours = extra_state.get("previous_training_time", 0) / 3600
    if 0 < limits.stop_time_hours < hours:
        return f"the run has taken {hours:.4g} h, and --stop-time-hours is {limits.stop_time_hours}"
    count, patience = extra_state.get(KEY, {}).get("num_runs", 0), trainer.cfg.checkpoint.patience
    if 0 < patience <= count and not trainer.cfg.checkpoint.reset_dataloader:
        return f"the last {count} validations had no better score, and --patience is {patience}"
    return ""
