"""fairseq's own tests, unchanged, with our architectures in place of fairseq's.

They are in a clone of https://github.com/facebookresearch/fairseq, which ``NORM_FAIRSEQ`` names:

    NORM_FAIRSEQ=CHECKOUT scripts/test.sh -m slow tests/models/test_fairseqs_own_tests.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from own_architectures import PLUGIN, command

CHECKOUT = os.environ.get("NORM_FAIRSEQ", "")
MODULES = (
    *("activation_checkpointing", "average_checkpoints", "binaries", "checkpoint_utils", "ema"),
    *("export", "inference_dropout", "reproducibility", "roberta", "sequence_generator", "train"),
    "valid_subset_checks",
)
"""The tests of fairseq that build a Transformer or RoBERTa on a CPU."""


def passed(module, report, norm=""):
    """The tests of a module that pass, and those that fail."""
    file = Path(CHECKOUT, "tests", f"test_{module}.py")
    argv = ["-p", "own_architectures", "-p", "no:cacheprovider", f"--junitxml={report}", str(file)]
    path = os.pathsep.join(word for word in sys.path if word)
    environment = {**os.environ, "PYTHONPATH": path, "NORM_OWN": norm}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *argv], env=environment, cwd=report.parent
    )
    results = {"passed": set(), "failed": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if "skipped" not in kinds:
            results["failed" if kinds & {"failure", "error"} else "passed"].add(case.get("name"))
    return results["passed"], results["failed"]


@pytest.mark.slow
@pytest.mark.skipif(not CHECKOUT, reason="NORM_FAIRSEQ names no clone of fairseq")
@pytest.mark.parametrize("module", MODULES)
def test_what_passes_with_fairseqs_architectures_passes_with_ours(module, tmp_path):
    stock, _ = passed(module, tmp_path / "stock.xml")
    ours, failed = passed(module, tmp_path / "ours.xml", norm="powernorm")
    assert ours and not failed & stock


def test_an_architecture_is_replaced_with_its_flags_and_another_kind_is_not():
    given = ["DATA", "--arch", "transformer_xl", "--n-layer", "2", "--user-dir", "own"]
    ours = ["DATA", "--arch", "norm_transformer_xl", "--norm-type", "dyt", "--decoder-layers"]
    assert command(given, "dyt") == [*ours, "2", "--user-dir", "own"]
    ours = ["DATA", "-a", "norm_roberta_base", "--norm-type", "dyt", "--user-dir", PLUGIN]
    assert command(["DATA", "-a", "roberta_base"], "dyt") == ours
    assert command(["DATA"], "dyt") == ["DATA", "--user-dir", PLUGIN]
    assert command(given, "") == given
    for name in ("masked_lm", "fconv", "x"):
        with pytest.raises(unittest.SkipTest, match=f"{name} has no counterpart"):
            command(["DATA", "--arch", name], "dyt")
