"""The table of runs, from files and in its published form."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from made_up_results import (
    folder_of,
    made_up,
    study_of_three,
    with_statistics,
    with_translations,
    write_failure,
)
from norm_lab.report.page import main as report
from norm_lab.report.records import statistics_of
from norm_lab.report.score_table import main as score_table
from norm_lab.results.publishing import publish, publish_command
from norm_lab.results.result import SCHEMA
from norm_lab.results.table import Results, read_curves, read_results
from norm_plugin.io.command_line import CommandError


def test_a_run_is_a_row(tmp_path):
    curves = {
        "train": [{"epoch": 1, "updates": 9, "loss": 5.0}, {"epoch": 2, "updates": 18, "loss": 4}],
        "valid": [{"epoch": 1, "updates": 9, "loss": 3.0}, {"epoch": 2, "updates": 18, "loss": 4}],
    }
    split = {"data__settings": {"split_seed": 7}, "differs": {"model.norm_variant": "released"}}
    folders = folder_of(
        tmp_path,
        made_up("layernorm", 1, 35.0, curves=curves, settings__optimization={"lr": [0.001]}),
        made_up("rmsnorm", 2, 36.0, placement="post", curves=None, **split),
    )
    runs = read_results(*folders)
    assert list(runs["norm"]) == ["rmsnorm", "layernorm"]  # toy_post precedes toy_pre
    rms, layer = runs.iloc[0], runs.iloc[1]
    assert (layer["score"], layer["valid_loss"], layer["train_loss"]) == (35.0, 3.0, 4.0)
    assert (layer["placement"], rms["placement"]) == ("pre", "post")
    assert layer["settings.optimization.lr"] == [0.001]
    assert rms["split_seed"] == 7
    assert rms["differs"] == {"model.norm_variant": "released"}
    assert rms[["valid_loss", "train_loss"]].isna().all()
    assert layer["git.commit"] == "0123456789abcdef"
    assert not any(column.startswith("curves") for column in runs)
    points = read_curves(*folders)
    assert list(points["subset"]) == ["train", "train", "valid", "valid"]
    assert set(points["norm"]) == {"layernorm"}


def test_runs_of_one_name_in_two_folders_have_their_own_losses(tmp_path):
    folders = []
    for name, loss in (("own", 3.0), ("published", 2.0)):
        curves = dict.fromkeys(("train", "valid"), [{"epoch": 1, "updates": 9, "loss": loss}])
        folders += folder_of(tmp_path / name, made_up(curves=curves))
    runs = read_results(*folders)
    assert runs["valid_loss"].tolist() == runs["train_loss"].tolist() == [3.0, 2.0]


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        ({"scores__tokenized": {"label": "fairseq BLEU4"}}, "lacks scores.tokenized.score"),
        ({"scores": {}}, "lacks scores.tokenized.score"),
        ({"experiment": None}, "lacks experiment"),
    ],
)
def test_a_damaged_result_is_named_with_its_damage(tmp_path, change, damage):
    (folder,) = folder_of(tmp_path, made_up("layernorm", 1, 35.0))
    path = folder / "layernorm-seed1.json"
    path.write_text(json.dumps(made_up("layernorm", 1, 35.0, **change)))
    with pytest.raises(CommandError) as refused:
        read_results(folder)
    assert str(refused.value) == f"{path} {damage}; run it again"


@pytest.mark.parametrize(
    "command", [report, score_table, lambda argv: publish_command([*argv, "x"])]
)
def test_a_file_in_place_of_a_folder_is_one_line(command, tmp_path):
    (tmp_path / "FILE.json").write_text("{}")
    with pytest.raises(CommandError, match="FILE.json has no results"):
        command([str(tmp_path / "FILE.json")])


def test_results_are_sorted_and_checked(tmp_path):
    for norm, seed in (("rmsnorm", 2), ("layernorm", 10), ("layernorm", 9)):
        folder_of(tmp_path, made_up(norm, seed, experiment="e"))
    runs = read_results(str(tmp_path / "e"))
    order = list(zip(runs["norm"], runs["seed"]))
    assert order == [("layernorm", 9), ("layernorm", 10), ("rmsnorm", 2)]
    with pytest.raises(CommandError, match="/f does not exist.*json"):
        read_results(tmp_path / "f")
    (tmp_path / "f").mkdir()
    with pytest.raises(CommandError, match=r"/f has no results"):
        read_results(tmp_path / "f")
    bad = tmp_path / "e" / "other.json"
    for text, message in [
        ('{"schema": 1}', rf"other\.json is not a result of schema {SCHEMA}"),
        (f'{{"schema": {SCHEMA}}}', r"other\.json lacks experiment"),
        ('{"schema"', r"other\.json is not JSON"),
    ]:
        bad.write_text(text)
        with pytest.raises(CommandError, match=message):
            read_results(tmp_path / "e")
    (tmp_path / "e/rmsnorm-seed2.json").rename(bad)
    with pytest.raises(CommandError, match=r"other\.json has the result of rmsnorm, seed 2"):
        read_results(tmp_path / "e")


LINES = ["ein hund .", "eine katze ."]


@pytest.fixture
def sweep(tmp_path):
    """The folder of a sweep: three norms, a run without curves, outputs, a failure."""
    (folder,) = study_of_three(tmp_path / "work")
    run = with_translations(made_up(), LINES, LINES)
    text = {
        "settings__model": {"norm_placement": "pre", "a": "0.3", "b": "true", "c": "", "d": 0.3}
    }
    no_curves = made_up("text", curves=None, differs={"a.b": None}, **text)
    folder_of(tmp_path / "work", with_statistics(run, g_mu=0.5), no_curves)
    write_failure(folder, "far", 4, curves={"valid": [{"epoch": 1, "updates": 30, "loss": 9.5}]})
    return folder


def tables(folder):
    results = Results(folder)
    runs = results.runs[sorted(set(results.runs) - {"folder"})]
    return (runs, results.curves, results.failures)


def assert_equal(ours, theirs):
    for actual, expected in zip(ours, theirs):
        pd.testing.assert_frame_equal(actual, expected)


def test_published_results_are_read_as_the_files_were(sweep, tmp_path, capsys):
    target = tmp_path / "results/toy"
    assert publish_command([str(sweep), str(target)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"10 runs: {target / 'runs.jsonl'}",
        "1 without a result",
    ]
    assert_equal(tables(sweep), tables(target))
    shared, *runs = map(json.loads, (target / "runs.jsonl").read_text().splitlines())
    assert len(runs) == 11 and all("settings.task.key" not in run for run in runs)
    assert shared["settings.task.key"] == 1  # the same for all
    (text,) = read_results(target).query("norm == 'text'").to_dict("records")
    assert [text[f"settings.model.{name}"] for name in "abcd"] == ["0.3", "true", "", 0.3]
    (failure,) = Results(target).failures.to_dict("records")
    assert (failure["norm"], failure["seed"], failure["state"]) == ("far", 4, "diverged")
    (run,) = read_results(target).query("norm == 'layernorm' and seed == 1").to_dict("records")
    assert run["translations"] == LINES
    assert statistics_of(run)["record"]["updates"] == [1, 11]


def test_a_folder_is_published_in_place_and_completed(sweep, tmp_path):
    before = tables(sweep)
    publish(sweep, sweep)
    assert sorted(path.name for path in sweep.iterdir()) == ["outputs.jsonl.gz", "runs.jsonl"]
    assert_equal(before, tables(sweep))
    folder_of(tmp_path / "work", made_up("alike", 3, 39.0), made_up("new", 1))
    runs = read_results(sweep)  # a run that was made again replaces its row
    assert len(runs) == 11
    assert runs.query("norm == 'alike' and seed == 3")["score"].tolist() == [39.0]
    both = tables(sweep)
    publish(sweep, sweep)
    assert_equal(both, tables(sweep))


@pytest.mark.parametrize("value", ["a\rb", "\r", "x" * 200_000, 'a "b",\nc\r\n', "\u2028\ufeffa"])
def test_any_text_is_published_as_it_is(value, tmp_path):
    (folder,) = folder_of(tmp_path, made_up(), made_up(seed=2, versions={"torch": value}))
    assert publish_command([str(folder), str(folder)]) == 0
    assert not list(folder.glob("*seed*.json"))
    assert read_results(folder)["versions.torch"].tolist() == ["2.13.0", value]


def test_equal_runs_are_published_as_equal_bytes(sweep, tmp_path):
    for name in ("a", "b"):
        publish(sweep, tmp_path / name)
    for file in ("runs.jsonl", "outputs.jsonl.gz"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_curves_have_runs_without_a_result(tmp_path):
    (folder,) = folder_of(tmp_path, made_up())
    points = [{"epoch": 1, "updates": 30, "loss": 9.5}]
    write_failure(folder, "gone", 2, curves={"train": [], "valid": points})
    curves = read_curves(folder)
    (lost,) = curves[curves["norm"] == "gone"].dropna(axis="columns").to_dict("records")
    run = {"experiment": "toy_pre", "norm": "gone", "seed": 2, "subset": "valid"}
    assert lost == {**run, **points[0]}
