"""benchmarks/preparation.py: its text, its projection, its rows."""

from __future__ import annotations

import pytest

import preparation
from measuring.records import read_rows

SECONDS = {"tokenize": 4.0, "learn": 3.0, "apply": 2.0}


def test_a_row_has_the_seconds_and_the_projection(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preparation, "measure", lambda raw, pairs, args: SECONDS)
    output = tmp_path / "preparation.csv"
    for _ in range(2):  # the second one goes on in the file of the first
        preparation.main(["--pairs", "45000", "--workers", "2", "--output", str(output)])
    rows = read_rows(output, ("date", "commit", "pairs", *(f"{one}_s" for one in SECONDS)))
    assert len(rows) == 2 and rows[0]["learn_s"] == "3.0"
    # (4 + 2) s on two workers are 1.5 s on eight cores; 100 times as many pairs
    assert float(rows[0]["wmt14_8_cores_min"]) == pytest.approx((1.5 + 3) * 100 / 60, abs=0.05)
    assert "4,500,000 pairs on 8 cores: about 8 minutes" in capsys.readouterr().out


def test_the_vocabulary_of_the_repeated_text_grows():
    lines = ["the dog sees", "a cat runs ."]
    found = list(preparation.repeated(lines, 100, 0.25, seed=1))
    assert len(found) == 100
    longer = [line for line, old in zip(found, 50 * lines) if line != old]
    assert all(line.startswith(tuple(lines)) for line in found)
    # a binomial count of 100 lines lies within 5 standard deviations, 21.7, of its mean
    assert abs(len(longer) - 25) < 21.7
    assert list(preparation.repeated(lines, 100, 0.25, seed=1)) == found
