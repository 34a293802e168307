"""Deep stacks: tiny trainings, their rows, and the page made of them."""

from __future__ import annotations

import csv
import json
import shlex

import pandas as pd
import pytest
import torch
from fairseq.data import Dictionary
from forked import ROOT, run_forked

from norm_plugin.analysis import deep_stacks
from norm_plugin.analysis.deep_stacks_page import (
    ORIGIN,
    deep_stacks_block,
    gradients_of,
    loss_table,
    losses_of,
)
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.state import hold_lock

UPDATES = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A toy corpus."""
    out = tmp_path_factory.mktemp("data") / "toy"
    argv = ["--out", out, "--train", 100, "--valid", 20, "--test", 20, "--workers", 1]
    assert run_forked(ROOT / "data-prep" / "toy.py", *argv).returncode == 0
    return out / "bin"


@pytest.fixture(scope="module")
def written(data, tmp_path_factory):
    """The folder of two runs."""
    out = tmp_path_factory.mktemp("deep") / "out"
    assert deep_stacks.main(argv_of(data, out)) == 0
    return out


def argv_of(data, out, *more):
    argv = ["--data", data, "--out", out, "--placements", "post", "rezero", "--depths", 2]
    return list(map(str, [*argv, "--seeds", 1, "--updates", UPDATES, *more]))


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
    before = (written / "runs.jsonl").read_text()
    first, _ = before.splitlines(keepends=True)
    (written / "runs.jsonl").write_text(first)
    assert "| `rezero` |" not in deep_stacks_block("losses", written)
    assert deep_stacks.main(argv_of(data, written)) == 0
    assert (written / "runs.jsonl").read_text() == before
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["rezero"]
    with pytest.raises(CommandError, match="has runs with other settings"):
        deep_stacks.main(argv_of(data, written, "--updates", "4"))
    busy = pytest.raises(CommandError, match="is in use: a training")
    with hold_lock(written, "something"), busy:
        deep_stacks.main(argv_of(data, written))


def test_a_line_that_is_no_json_is_one_line_of_error(written, data):
    before = (written / "runs.jsonl").read_text()
    try:
        (written / "runs.jsonl").write_text(before[:50] + "\n")
        with pytest.raises(CommandError, match="runs.jsonl has a line that is not JSON"):
            deep_stacks.main(argv_of(data, written))
    finally:
        (written / "runs.jsonl").write_text(before)


def test_what_is_given_twice_is_trained_once(data, tmp_path, monkeypatch):
    cases = []

    def train(case, folder, updates):
        cases.append(case)
        losses = {"losses": [5.0], "valid": 5.0, "unigram": 7.0}
        return {**case._asdict(), "updates": 3, "diverged": None, "gradients": {}, **losses}

    monkeypatch.setattr(deep_stacks, "train", train)
    twice = ["--placements", "post", "post", "--depths", "2", "2", "--seeds", "2", "1", "2"]
    deep_stacks.main([*argv_of(data, tmp_path), *twice])
    assert cases == [("post", 2, 2), ("post", 2, 1)]


def test_the_page_names_every_commit_and_command(written, data, tmp_path):
    command = shlex.join(["norm-plugin", "deep-stacks", *argv_of(data, written)])
    about, rows = json.loads((written / "about.json").read_text()), rows_of(written)
    assert {(row["command"], row["git"]["commit"]) for row in rows} == {
        (command, about["git"]["commit"])
    }
    assert f"\n{command}\n```" in deep_stacks_block("provenance", written)
    about["git"] = {"commit": "a" * 40, "dirty": False}
    (tmp_path / "about.json").write_text(json.dumps(about))
    # a row of before each had its origin has that of about.json
    old = {name: value for name, value in rows[0].items() if name not in ORIGIN}
    another = {**old, "git": {"commit": "b" * 40, "dirty": True}, "command": "another"}
    (tmp_path / "runs.jsonl").write_text(f"{json.dumps(old)}\n{json.dumps(another)}\n")
    text = deep_stacks_block("provenance", tmp_path)
    assert f"Commits {'a' * 10}, {'b' * 10} and changes, " in text
    assert f"```bash\n{command}\nanother\n```" in text


def test_a_run_that_diverges_is_a_row(data, monkeypatch):
    monkeypatch.setitem(deep_stacks.CHANGED, "lr", 1e30)
    monkeypatch.setitem(deep_stacks.CHANGED, "warmup-updates", 1)
    for placement in ("pre", "rezero"):  # with norms that see it, and without any
        row = deep_stacks.train(deep_stacks.Case(placement, 1, 1), data, 5)
        assert row["diverged"] and row["valid"] is None
        assert f"diverged ({row['diverged']})" in loss_table(pd.DataFrame([row]))


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


@pytest.mark.parametrize("flag", ["--updates", "--depths"])
def test_a_training_of_nothing_is_refused(flag, tmp_path, capsys):
    with pytest.raises(SystemExit):
        deep_stacks.main(["--data", "bin", "--out", str(tmp_path / "out"), flag, "0"])
    assert f"argument {flag}: '0' is not a whole number from 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_losses_and_gradients_are_means_over_seeds():
    def run(seed, losses, gradients):
        return {"placement": "pre", "layers": 1, "seed": seed, "losses": losses} | {
            "gradients": {"1": gradients}
        }

    runs = pd.DataFrame(
        [
            run(1, [5.0, 4.0], {"encoder.layers.0": 1.0, "decoder.layers.0": 2.0}),
            run(2, [7.0], {"encoder.layers.0": 3.0}),  # it diverged; its decoder was not finite
        ]
    )
    assert losses_of(runs)[["updates", "loss"]].to_numpy().tolist() == [[10, 6.0], [20, 4.0]]
    gradients = gradients_of(runs)[["side", "layer", "gradient_norm"]]
    assert gradients.to_numpy().tolist() == [["encoder", 1, 2.0], ["decoder", 1, 2.0]]
