"""Deep stacks: tiny trainings, their rows, and the page made of them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

from norm_plugin.analysis import deep_stacks
from norm_plugin.analysis.deep_stacks_page import deep_stacks_block, table
from norm_plugin.commands.command_line import CommandError

ROOT = Path(__file__).resolve().parents[2]
UPDATES = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A toy corpus."""
    out = tmp_path_factory.mktemp("data") / "toy"
    words = ["--out", out, "--train", 100, "--valid", 20, "--test", 20, "--workers", 1]
    command = [sys.executable, ROOT / "data-prep" / "toy.py", *words]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return out / "bin"


@pytest.fixture(scope="module")
def written(data, tmp_path_factory):
    """The folder of two runs."""
    out = tmp_path_factory.mktemp("deep") / "out"
    assert deep_stacks.main(words(data, out)) == 0
    return out


def words(data, out, *more):
    given = ["--data", data, "--out", out, "--placements", "post", "rezero", "--depths", 2]
    return [str(word) for word in [*given, "--seeds", 1, "--updates", UPDATES, *more]]


def rows_of(folder):
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def test_each_run_has_losses_and_gradients_of_every_layer(written):
    post, rezero = rows_of(written)
    for row in (post, rezero):
        assert row["diverged"] is None and len(row["losses"]) == 1
        assert list(row["gradients"]) == ["1", str(UPDATES)]
        assert 3 < row["unigram"] < row["valid"]  # nothing is learned in three updates
    layers = [f"{side}.layers.{index}" for side in ("encoder", "decoder") for index in range(2)]
    assert list(post["gradients"]["1"]) == layers
    assert all(value > 0 for value in post["gradients"]["1"].values())
    assert not any(rezero["gradients"]["1"].values())  # its branches start as 0


def test_a_second_call_trains_only_what_is_missing(written, data, capsys):
    before = rows_of(written)
    (written / "runs.jsonl").write_text(json.dumps(before[0]) + "\n")
    assert deep_stacks.main(words(data, written)) == 0
    assert rows_of(written) == before
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["rezero"]
    with pytest.raises(CommandError, match="has runs with other settings"):
        deep_stacks.main(words(data, written, "--updates", "4"))


def test_a_run_that_diverges_is_a_row(data, monkeypatch):
    monkeypatch.setitem(deep_stacks.CHANGED, "lr", 1e30)
    monkeypatch.setitem(deep_stacks.CHANGED, "warmup-updates", 1)
    for placement in ("pre", "rezero"):  # with norms that see it, and without any
        row = deep_stacks.train(deep_stacks.Case(placement, 1, 1), data, 5)
        assert row["diverged"] and row["valid"] is None
        assert f"diverged ({row['diverged']})" in table([row])


def test_the_unigram_loss_is_the_cross_entropy_of_the_frequencies():
    class Task:
        target_dictionary = Dictionary()  # four words
        splits = {
            "train": [torch.tensor([0, 0]), torch.tensor([1, 1])],
            "valid": [torch.tensor([0])],
        }

        def load_dataset(self, split):
            assert split == "valid"

        def dataset(self, split):
            return type("Pairs", (), {"tgt": self.splits[split]})

    # frequencies 3/8, 3/8, 1/8, 1/8
    assert deep_stacks.unigram_loss(Task()) == pytest.approx(1.4150374992788437)  # log2(8 / 3)


def test_the_page_has_every_run(written):
    rows = rows_of(written)
    text = deep_stacks_block("losses", written)
    for row in rows:
        assert f"| `{row['placement']}` | {row['valid']:.2f} (not trained) |" in text
    assert "Each cell has one seed, so a difference between two cells can be noise." in text
    gradients = rows[0]["gradients"]["1"]
    first, last = (f"{gradients[f'encoder.layers.{index}']:.2g}" for index in (0, 1))
    assert f"| `post` | {first} | {last} |" in deep_stacks_block("gradients", written)
    assert "3 updates" in deep_stacks_block("provenance", written)
    with (written / "gradients-first-update.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 2 * 2 * 2
    for name in ("loss-2.svg", "gradients-last-update.svg"):
        assert (written / name).read_text().startswith("<svg")
    assert len((written / "runs.csv").read_text().splitlines()) == 1 + len(rows)
