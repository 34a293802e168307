"""A pytest plugin: print the largest difference of each placement, norm and initialization.

    OMP_NUM_THREADS=1 pytest -p differences tests/models/test_placements.py \\
      tests/norms/test_against_references.py tests/models/test_initialization.py \\
      -k "equation or step_by_step or folding_changes or forward_gradients or variance_of_the"

These tests compare with the slow float64 transcriptions, on batches with padding. A column is what
a test compares. Tensors differ absolutely; a variance, which is estimated, differs relatively.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd
import torch

COLUMNS = {
    "test_forward_and_gradients_are_those_of_the_equation": "forward",
    "test_forward_gradients_and_statistics": "forward",
    "test_decoding_step_by_step_equals_decoding_at_once": "step by step",
    "test_folding_changes_no_logits": "folded",
    "test_weights_have_the_variance_of_the_formula": "initial weights",
}
"""The subject of a test's comparison, by its name; if the test names it, it is a gradient."""
largest: dict[str, dict[str, float]] = defaultdict(dict)
now: list[tuple[str, str]] = []


def pytest_runtest_setup(item):
    """Remember whose test comes next."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    name = parameters.get("name", parameters.get("word"))
    options = ", ".join(f"{k}={v}" for k, v in parameters.get("options", {}).items())
    now[:] = [(f"{name} {options}".strip(), COLUMNS.get(item.originalname, ""))]


def keep(ours, theirs, what):
    """Keep the difference of two numbers, tensors or arrays."""
    name, column = now[0]
    if isinstance(theirs, float):
        difference = abs(ours - theirs) / (abs(theirs) or 1.0)
    else:
        ours, theirs = (torch.as_tensor(tensor).detach().double() for tensor in (ours, theirs))
        difference = (ours - theirs.reshape(ours.shape)).abs().max().item()
        gradient = isinstance(what, str) and what and not what.startswith("y at")
        column = "gradients and statistics" if column == "forward" and gradient else column
    if column:
        largest[name][column] = max(largest[name].get(column, 0.0), difference)


def pytest_configure():
    """Look at what the tests compare."""
    close, all_close = torch.testing.assert_close, np.testing.assert_allclose

    def assert_close(actual, expected, *args, msg=None, **kwargs):
        keep(actual, expected, msg)
        close(actual, expected, *args, msg=msg, **kwargs)

    def assert_allclose(actual, desired, *args, err_msg="", **kwargs):
        keep(actual, desired, err_msg)
        all_close(actual, desired, *args, err_msg=err_msg, **kwargs)

    torch.testing.assert_close, np.testing.assert_allclose = assert_close, assert_allclose


def pytest_terminal_summary(terminalreporter):
    """Print the table."""
    columns = [*dict.fromkeys([*COLUMNS.values(), "gradients and statistics"])]
    table = pd.DataFrame(largest).T.reindex(columns=columns)
    terminalreporter.write_line(table.to_string(float_format="{:.1e}".format, na_rep="-"))
