"""papers/example_runs.py: the results of the examples and their tables."""

from __future__ import annotations

import hashlib
import json
import sys
from types import SimpleNamespace

import pytest

from norm_plugin.io.command_line import CommandError
from papers import example_runs
from papers.example_runs import RESULTS, comparisons_table, example_table
from papers.scores import published_scores


@pytest.fixture
def calls(monkeypatch):
    """An example whose scores follow from its command line; the list of its command lines."""
    seen = []

    def main(argv):
        seen.append(argv)
        return {"test accuracy": 90.0 + len(seen)}

    monkeypatch.setitem(sys.modules, "mnist", SimpleNamespace(main=main))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return seen


def test_runs_are_kept_and_not_repeated(tmp_path, calls):
    data, out = tmp_path / "data", tmp_path / RESULTS
    data.mkdir()
    (data / "a").write_text("b")
    argv = ["mnist", "--data", str(data), "--out", str(out), "--norms", "none", "adanorm"]
    example_runs.main([*argv, "--seeds", "1"])
    example_runs.main([*argv, "--seeds", "1", "2"])
    assert [call[call.index("--norm-type") + 1 :] for call in calls] == [
        [norm, "--seed", seed] for seed in "12" for norm in ("none", "adanorm")
    ]
    result = json.loads((out / "mnist" / "none-seed2.json").read_text())
    assert result["scores"] == {"test accuracy": 93.0}
    assert str(tmp_path) not in json.dumps(result)
    assert result["data"] == hashlib.sha256(b"a\0" + hashlib.sha256(b"b").digest()).hexdigest()

    table = example_table("mnist", tmp_path)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    # the mean of 91 and 93, and t(0.975, 1) = 12.706 times their standard error 1
    assert ["`none`", "1, 2", "92.00", "± 12.71", "99.14"] in rows
    assert ["`adanorm`", "1, 2", "93.00", "± 12.71", "99.35"] in rows
    assert "`python examples/mnist.py --data DIR --norm-type NORM --seed SEED`, torch" in table
    assert table.count("python examples/mnist.py") == 1


@pytest.fixture
def stored(tmp_path, calls):
    """The argv of a command that has run once, and the folder of its results."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("b")
    argv = ["mnist", "--data", str(tmp_path / "data"), "--out", str(tmp_path / RESULTS)]
    argv += ["--norms", "none", "--seeds", "1"]
    example_runs.main(argv)
    return argv, tmp_path / RESULTS / "mnist"


@pytest.mark.parametrize("key", example_runs.SHARED)
def test_runs_that_differ_in_more_than_norm_and_seed_have_no_table(tmp_path, stored, key):
    _, folder = stored
    run = json.loads((folder / "none-seed1.json").read_text())
    for seed, changes in ((2, {"git": {"commit": "c" * 40, "dirty": False}}), (3, {key: "new"})):
        text = json.dumps({**run, "seed": seed, **changes})
        (folder / f"none-seed{seed}.json").write_text(text)
    with pytest.raises(
        CommandError, match=f"have another {key}: .* of none, seed 1, and new; remove"
    ):
        example_table("mnist", tmp_path)
    (folder / "none-seed3.json").unlink()
    assert "1, 2" in example_table("mnist", tmp_path)  # another commit has a line of its own


def test_runs_are_not_continued_with_other_data(tmp_path, stored, calls):
    argv, _ = stored
    (tmp_path / "data" / "a").write_text("other")
    with pytest.raises(CommandError, match="have another data: .* another --out"):
        example_runs.main([*argv, "--seeds", "2"])
    assert len(calls) == 1


def test_a_run_that_diverges_is_one_line_and_no_file(tmp_path, stored, monkeypatch):
    argv, folder = stored

    def diverge(_):
        raise ValueError("the loss of epoch 5 is nan")

    monkeypatch.setattr(sys.modules["mnist"], "main", diverge)
    with pytest.raises(ValueError, match="the loss of epoch 5 is nan"):
        example_runs.main([*argv, "--seeds", "2"])
    assert [path.name for path in folder.iterdir()] == ["none-seed1.json"]


def test_nothing_was_run(tmp_path):
    assert example_table("parsing", tmp_path).startswith("Not run: `python -m papers.example_runs")


def test_declared_comparisons_are_paired_tests_beside_the_paper(tmp_path):
    folder = tmp_path / RESULTS / "mnist"
    folder.mkdir(parents=True)
    lead = {"layernorm": [0.0, 0.0, 0.0], "none": [0.01, 0.02, 0.03], "adanorm": [-3.0, -4.0, -5.0]}
    for norm in published_scores("mnist"):
        for seed, difference in zip((11, 12, 13), lead.get(norm, [1.0, 3.0, 8.0])):
            scores = {"test accuracy": 90.0 + seed / 10 + difference}
            run = {"norm": norm, "seed": seed, "scores": scores, "data": "d", "command": "c"}
            (folder / f"{norm}-seed{seed}.json").write_text(json.dumps(run))
    table = comparisons_table("mnist", tmp_path)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    # within 0.1 points; t = -2 sqrt 3 with 2 degrees of freedom, p 0.0742, is the second smallest
    # of seven; the smallest, 0.0202, is that of t = -4 sqrt 3
    interval = "-0.045 to +0.005"
    assert rows[2] == [
        *("`layernorm` minus `none`", "Table 1", "-0.01", "-0.020", interval, "3"),
        *("0.4451", "equal"),
    ]
    adanorm = rows[-1]
    assert adanorm[:4] == ["`adanorm` minus `layernorm`", "Table 4", "+0.22", "-4.000"]
    assert adanorm[6:] == ["0.1414", "undecided"]
