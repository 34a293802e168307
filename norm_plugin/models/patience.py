"""``--patience`` goes on counting where a run is resumed.

fairseq counts the validations without a better score as attributes of a function, so a process that
resumes a run would begin at 0 and train longer than one that was never stopped. After the end of a
run it would train one epoch more.
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


def counted() -> dict[str, float] | None:
    """What was counted so far; None before the first validation with ``--patience``."""
    function = should_stop_early()
    if not all(hasattr(function, name) for name in COUNTED):
        return None
    return {name: getattr(function, name) for name in COUNTED}


def count_on(extra_state: Mapping[str, Any], cfg: Any) -> None:
    """Take up the count that ``extra_state`` has, in a program that counts.

    Args:
        extra_state: of the checkpoint that the run resumes from.
        cfg: fairseq's configuration of the run. If the count has reached its ``--patience``,
            ``max_epoch`` becomes -1, so that no epoch is trained.
    """
    function = should_stop_early()
    if function is None or KEY not in extra_state:
        return
    for name in COUNTED:
        setattr(function, name, extra_state[KEY][name])
    count, patience = extra_state[KEY]["num_runs"], cfg.checkpoint.patience
    if 0 < patience <= count and not cfg.checkpoint.reset_dataloader:
        logger.info(
            f"nothing to train: the last {count} validations had no better score, and --patience "
            f"is {patience}; pass a larger --patience to train on"
        )
        cfg.optimization.max_epoch = -1  # 0 would be no limit
