"""benchmarks/preparation.py: its text, its projection, its rows."""

from __future__ import annotations

import pandas as pd
import pytest

import preparation

SECONDS = {"tokenize": 4.0, "learn": 3.0, "apply": 2.0}


def test_a_row_has_the_seconds_and_the_projection(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preparation, "measure", lambda raw, pairs, args: SECONDS)
    output = tmp_path / "preparation.csv"
    for _ in range(2):  # the second one goes on in the file of the first
        preparation.main(["--pairs", "45000", "--workers", "2", "--output", str(output)])
    rows = pd.read_csv(output)
    assert rows["learn_s"].tolist() == [3.0, 3.0]
    # (4 + 2) s on two workers are 1.5 s on eight cores; 100 times as many pairs
    assert rows["wmt14_8_cores_min"][0] == pytest.approx((1.5 + 3) * 100 / 60, abs=0.05)
    assert "4,500,000 pairs on 8 cores: about 8 minutes" in capsys.readouterr().out


def test_every_step_is_timed(tmp_path, monkeypatch):
    def write_raw(raw, pairs, new_words, folder):
        paths = {name: folder / name for name in ("train.en", "train.de")}
        for path in paths.values():
            path.write_text("The dog sees a cat .\n" * pairs)
        return paths

    monkeypatch.setattr(preparation, "write_raw", write_raw)
    args = preparation.parse_args(["--merges", "20", "--workers", "1"])
    seconds = preparation.measure(tmp_path, 30, args)
    assert list(seconds) == list(SECONDS) and min(seconds.values()) > 0


def test_the_vocabulary_of_the_repeated_text_grows():
    lines = ["the dog sees", "a cat runs ."]
    text = list(preparation.repeated(lines, 100, 0.25, seed=1))
    assert len(text) == 100
    longer = [line for line, old in zip(text, 50 * lines) if line != old]
    assert all(line.startswith(tuple(lines)) for line in text)
    # a binomial count of 100 lines lies within 5 standard deviations, 21.7, of its mean
    assert abs(len(longer) - 25) < 21.7
    assert list(preparation.repeated(lines, 100, 0.25, seed=1)) == text
