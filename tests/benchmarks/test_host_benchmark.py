"""benchmarks/host.py: what the host does for a norm, counted and timed without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pandas as pd
import pytest
from forked import ROOT

pytest.importorskip("triton", reason="no triton: scripts/setup.sh installs it")


def test_a_norm_is_measured_beside_stock(toy, tmp_path):
    output = tmp_path / "host.csv"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    argv = ["--quick", "--norms", "layernorm", "layernorm-simple", "--optimizer", "adam_foreach"]
    command = [sys.executable, ROOT / "benchmarks" / "host.py", "--data", toy, "--output", output]
    subprocess.run([*command, *argv], env=environment, check=True, capture_output=True, text=True)
    layernorm, simple = pd.read_csv(output).to_dict("records")
    # torch's own kernels, one each way, where the other norm has two of Triton
    assert (layernorm["forward_triton"], layernorm["launches"]) == (0, 2)
    assert (simple["forward_triton"], simple["backward_triton"]) == (1, 1)
    assert layernorm["stock_update_launches"] == simple["stock_update_launches"]
    # adam alone has 2,058 launches
    assert 1000 < layernorm["stock_update_launches"] < 1500
    assert (layernorm["update_launches"] > 1000) and (layernorm["ratio_p50"] > 0)
    assert set(pd.read_csv(output)["optimizer"]) == {"adam_foreach"}
