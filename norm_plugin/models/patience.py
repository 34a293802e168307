"""``--patience`` goes on counting where a run is resumed.

fairseq counts the validations without a better score as attributes of a function, so a process that
resumes a run would begin at 0 and train longer than one that was never stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

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


def count_on(extra_state: Mapping[str, Any]) -> None:
    """Take up the count that ``extra_state`` has, in a program that counts."""
    function = should_stop_early()
    if function is None:
        return
    for name, value in extra_state.get(KEY, {}).items():
        setattr(function, name, value)
