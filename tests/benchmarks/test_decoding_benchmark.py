"""benchmarks/decoding.py: it runs, and its rows are whole."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import decoding
from norm_plugin.io.command_line import CommandError

TINY = ["--arch", "norm_transformer_multi30k_tiny", "--words", "50", "--sentences", "2"]
TINY += ["--length", "5", "--steps", "3", "--beam", "2", "--repetitions", "2"]
TINY += ["--norms", "batchnorm", "--threads", str(torch.get_num_threads())]


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    monkeypatch.setattr(decoding, "quiet", lambda: None)  # the loggers are those of all tests


def test_a_row_for_each_model_and_stage(tmp_path, capsys):
    output = tmp_path / "results" / "decoding.csv"
    for _ in range(2):
        decoding.main([*TINY, "--output", str(output)])
    rows = pd.read_csv(output)
    forms = [("layernorm", "unfolded"), ("batchnorm", "unfolded"), ("batchnorm", "folded")]
    assert list(zip(rows["stage"], rows["norm"], rows["form"])) == 2 * [
        (stage, *form) for stage in ("encoder", "generation") for form in forms
    ]
    assert rows.notna().all(axis=None)
    assert (rows["p25_ms"] > 0).all() and (rows["p25_ms"] <= rows["p75_ms"]).all()
    assert rows["ratio_to_layernorm"][0] == 1
    assert "encoder-ffn: batchnorm folded, 4 into 4 linear maps (fc1)" in capsys.readouterr().out


def test_another_function_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        decoding, "fold_norms", lambda model: model.encoder.layer_norm.bias.data.add_(1)
    )
    with pytest.raises(CommandError, match="batchnorm: folding changes the logits"):
        decoding.main([*TINY, "--output", str(tmp_path / "decoding.csv")])
    assert list(tmp_path.iterdir()) == []
