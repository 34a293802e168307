"""benchmarks/decoding.py: it runs, and its rows are whole."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
TINY = [
    *(
        "--arch",
        "norm_transformer_multi30k_tiny",
        "--words",
        "50",
        "--sentences",
        "2",
        "--length",
        "5",
    ),
    *("--steps", "3", "--beam", "2", "--repetitions", "2", "--norms", "batchnorm"),
    *("--threads", str(torch.get_num_threads())),
]


@pytest.fixture
def decoding(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import decoding

    return decoding


def test_a_row_for_each_model_and_stage(decoding, tmp_path, capsys):
    output = tmp_path / "results" / "decoding.csv"
    for _ in range(2):
        decoding.main([*TINY, "--output", str(output)])
    with open(output, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["stage"], row["norm"], row["form"]) for row in rows[:6]] == [
        (stage, norm, form)
        for stage in ("encoder", "generation")
        for norm, form in (
            ("layernorm", "unfolded"),
            ("batchnorm", "unfolded"),
            ("batchnorm", "folded"),
        )
    ]
    assert len(rows) == 12
    for row in rows:
        assert None not in row and all(row.values()), row
        assert 0 < float(row["p25_ms"]) <= float(row["p50_ms"]) <= float(row["p75_ms"])
    assert float(rows[0]["ratio_to_layernorm"]) == 1
    assert "encoder-ffn: batchnorm folded, 4 into 4 linear maps (fc1)" in capsys.readouterr().out


def test_another_function_is_not_timed(decoding, tmp_path, monkeypatch):
    monkeypatch.setattr(
        decoding, "fold_norms", lambda model: model.encoder.layer_norm.bias.data.add_(1)
    )
    with pytest.raises(SystemExit, match="error: batchnorm folded is another model"):
        decoding.main([*TINY, "--output", str(tmp_path / "decoding.csv")])
    assert list(tmp_path.iterdir()) == []


def test_the_batch_is_ragged(decoding):
    dictionary = decoding.dictionary_of(50)
    batch = decoding.random_batch(dictionary, 4, 8)
    assert len(dictionary) == 50
    assert batch["src_lengths"].tolist() == [8, 6, 5, 4]
    assert batch["src_tokens"].ne(dictionary.pad()).sum(1).tolist() == [8, 6, 5, 4]
