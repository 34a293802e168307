"""The table of runs, from files and in its published form."""

from __future__ import annotations

import contextlib
import json
import math
import shutil

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
from norm_lab.results import publishing
from norm_lab.results.artifacts import STATISTICS, TRANSLATIONS, read_artifact
from norm_lab.results.publishing import publish, publish_command
from norm_lab.results.result import SCHEMA, write_result
from norm_lab.results.table import read_curves, read_failures, read_results
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import write_text


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
    assert layer["commit"] == "0123456789abcdef"
    assert not any(column.startswith("curves") for column in runs)
    points = read_curves(*folders)
    assert list(points["subset"]) == ["train", "train", "valid", "valid"]
    assert set(points["norm"]) == {"layernorm"}


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
    assert str(refused.value) == f"{path} {damage}; write it again"


def curves_of(value):
    """A result with another value in place of the curve of the validation losses."""
    return {"curves": {"valid": value}}


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        ({"scores__tokenized__score": math.inf}, "has the scores.tokenized.score 'inf', which is"),
        ({"scores__tokenized__score": "35"}, "has the scores.tokenized.score '35', which is not"),
        ({"scores__tokenized__score": [35.0]}, r"has the scores.tokenized.score '\[35.0\]'"),
        ({"scores__tokenized__score": True}, "has the scores.tokenized.score 'True', which is"),
        ({"scores__tokenized__score": None}, "lacks scores.tokenized.score; write it again"),
        ({"scores": 35.0}, "has the scores '35.0'; write it again"),
        ({"metric": "blue"}, "metric blue"),
        ({"seed": "1"}, "has the seed '1'; write it again"),
        ({"seed": None}, "has the result of layernorm, seed None"),
        ({"norm": ["layernorm"]}, r"has the norm .\['layernorm'\]"),
        ({"curves": "none"}, "has the curves 'none'"),
        (curves_of("none"), "has another value than a curve of valid"),
        (curves_of([7]), "has another value than a curve of valid"),
        (curves_of([{"updates": 1, "loss": math.inf}]), "has another value than a curve of valid"),
        (curves_of([{"updates": 1, "loss": "8"}]), "has another value than a curve of valid"),
        ({"kept": ["translations"]}, "has the kept"),
        ({"kept": {"translations": "a.gz"}}, "has no checksum of its translations"),
        ({"differs": "all"}, "has the differs 'all'"),
        ({"date": 7}, "has the date '7'"),
        ({"model__parameters": "many"}, "has the model.parameters 'many'"),
        ({"training__updates_per_second": [1]}, r"has the training.updates_per_second '\[1\]'"),
        ({"scores__tokenized__label": []}, r"has the scores.tokenized.label '\[\]'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_line(tmp_path, change, damage):
    (folder,) = folder_of(tmp_path, made_up("layernorm", 1, 35.0))
    path = folder / "layernorm-seed1.json"
    named = {key: value for key, value in change.items() if key in ("norm", "seed")}
    others = {key: value for key, value in change.items() if key not in named}
    path.write_text(json.dumps(made_up("layernorm", 1, 35.0, **others) | named))
    with pytest.raises(CommandError, match=damage):
        read_results(folder)


@pytest.mark.parametrize("depth", [500, 900, 100_000])
@pytest.mark.parametrize("name", ["layernorm-seed1.json", "shared.json"])
def test_json_that_is_nested_deeply_is_one_line(depth, name, tmp_path):
    (folder,) = folder_of(tmp_path, made_up("rmsnorm", 2))
    deep = '{"a": ' * depth + "1" + "}" * depth
    result = json.dumps(made_up("layernorm", 1))
    (folder / name).write_text(result.removesuffix("}") + f', "deep": {deep}}}')
    with contextlib.suppress(CommandError):  # a depth that can be read may be taken
        read_results(folder)


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        ("7", "a-seed1.json is not a result"),
        ("{}", "a-seed1.json is not a result"),
        ('{"experiment": "e", "norm": null, "seed": 1, "state": "failed"}', "is not the record"),
        (
            '{"experiment": "e", "norm": "a", "seed": [1], "state": "failed", "differs": {}}',
            "has the seed",
        ),
        ("[" * 100_000, "is not JSON"),
        ("1" * 5000, "is not JSON"),
        ("\xff", "is not a result|is not JSON"),
    ],
)
def test_a_damaged_failure_is_one_line(content, damage, tmp_path):
    (folder,) = folder_of(tmp_path, made_up())
    (folder / "a-seed1.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CommandError, match=damage):
        read_failures(folder)


@pytest.mark.parametrize(
    ("old", "new", "damage"),
    [
        ("seed", "sead", "runs.csv lacks seed"),
        ("35.0", "Infinity", "runs.csv has the scores.tokenized.score 'inf'"),
        ("35.0", "none", "runs.csv has the scores.tokenized.score 'none'"),
    ],
)
def test_a_damaged_table_is_one_line(old, new, damage, tmp_path):
    (folder,) = folder_of(tmp_path, made_up(bleu=35.0), made_up(seed=2, bleu=36.0))
    publish(folder, folder)
    table = folder / "runs.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(CommandError, match=damage):
        read_results(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.csv", "experiment,norm\ntoy_pre,layernorm,1,2,3\n"),
        ("runs.csv", 'experiment,norm,seed\n"toy_pre,layernorm\n'),
        ("failed.csv", "experiment,norm,seed\ntoy_pre,a,1\n"),
        ("failed.csv", "a\n1,2\n"),
        ("curves.csv", ""),
        ("curves.csv", "a,b\n1,2\n"),
        ("curves.csv", "a\n1,2\n3,4,5,6\n"),
        ("curves.csv", "experiment,norm,seed,subset,epoch,updates,loss\ntoy_pre,a,1,train,1,9,x\n"),
        ("shared.json", "[1]"),
        ("shared.json", "7"),
    ],
)
def test_a_table_edited_by_hand_is_one_line(name, text, tmp_path):
    (folder,) = folder_of(tmp_path, made_up(), made_up(seed=2))
    publish(folder, folder)
    (folder / name).write_text(text)
    with pytest.raises(CommandError, match=name):
        read_results(folder)


@pytest.mark.parametrize(
    "command", [report, score_table, lambda argv: publish_command([*argv, "x"])]
)
def test_a_file_in_place_of_a_folder_is_one_line(command, tmp_path):
    (tmp_path / "FILE.json").write_text("{}")
    with pytest.raises(CommandError, match="FILE.json: the folder does not exist"):
        command([str(tmp_path / "FILE.json")])


def test_a_result_of_translation_from_before_there_were_other_tasks(tmp_path):
    bleu = {"tokenized": {"score": 35.0, "label": "fairseq BLEU4"}}
    old = {"schema": 2, "experiment": "e", "norm": "layernorm", "seed": 1, "bleu": bleu}
    write_result(old, tmp_path)
    (run,) = read_results(tmp_path / "e").to_dict("records")
    assert (run["metric"], run["score"]) == ("bleu", 35.0)
    assert run["scores.tokenized.label"] == "fairseq BLEU4"


def test_results_are_sorted_and_checked(tmp_path):
    for norm, seed in (("rmsnorm", 2), ("layernorm", 10), ("layernorm", 9)):
        folder_of(tmp_path, made_up(norm, seed, experiment="e"))
    runs = read_results(str(tmp_path / "e"))
    order = list(zip(runs["norm"], runs["seed"]))
    assert order == [("layernorm", 9), ("layernorm", 10), ("rmsnorm", 2)]
    with pytest.raises(CommandError, match="no results in .*/f: the folder does not exist.*json"):
        read_results(tmp_path / "f")
    (tmp_path / "f").mkdir()
    with pytest.raises(CommandError, match=r"/f: it has none"):
        read_results(tmp_path / "f")
    bad = tmp_path / "e" / "other.json"
    for text, message in [
        ('{"schema": 1}', rf"other\.json is not a result of schema {SCHEMA}"),
        (f'{{"schema": {SCHEMA}}}', rf"other\.json is not a result of schema {SCHEMA}"),
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
    """The folder of a sweep: three norms, a run without curves, kept files, two failures."""
    (folder,) = study_of_three(tmp_path / "work")
    run = with_translations(made_up(), tmp_path / "work", LINES, LINES)
    statistics = with_statistics(run, tmp_path / "work", g_mu=0.5)["kept"]
    folder_of(tmp_path / "work", {**run, "kept": {**run["kept"], **statistics}})
    text = {
        "settings__model": {"norm_placement": "pre", "a": "0.3", "b": "true", "c": "", "d": 0.3}
    }
    folder_of(tmp_path / "work", made_up("text", curves=None, differs={"a.b": None}, **text))
    write_failure(folder, "far", 4, curves={"valid": [{"epoch": 1, "updates": 30, "loss": 9.5}]})
    return folder


def tables(folder):
    runs = read_results(folder)
    names = [name for name in runs if not name.endswith(".file")]
    curves = read_curves(folder).sort_values(["norm", "seed", "subset", "updates"])
    return (
        runs[sorted(set(names) - {"folder"})],
        curves.reset_index(drop=True),
        read_failures(folder),
    )


def assert_equal(ours, theirs):
    for actual, expected in zip(ours, theirs):
        pd.testing.assert_frame_equal(actual, expected)


def test_published_results_are_read_as_the_files_were(sweep, tmp_path, capsys):
    target = tmp_path / "results/toy"
    assert publish_command([str(sweep), str(target)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"10 runs: {target / 'runs.csv'}",
        f"1 without a result: {target / 'failed.csv'}",
    ]
    assert_equal(tables(sweep), tables(target))
    runs = pd.read_csv(target / "runs.csv")  # as a person opens it
    assert len(runs) == 10 and runs["score"].iloc[0] == 35.1
    assert "settings.task.key" not in runs  # the same for all
    assert json.loads((target / "shared.json").read_text())["settings.task.key"] == 1
    (text,) = read_results(target).query("norm == 'text'").to_dict("records")
    assert [text[f"settings.model.{name}"] for name in "abd"] == ["0.3", "true", 0.3]
    (failure,) = read_failures(target).to_dict("records")
    assert (failure["norm"], failure["seed"], failure["state"]) == ("far", 4, "diverged")
    (run,) = read_results(target).query("norm == 'layernorm' and seed == 1").to_dict("records")
    assert read_artifact(run, TRANSLATIONS).splitlines() == LINES
    assert statistics_of(run)["record"]["updates"] == [1, 11]


def test_a_folder_is_published_in_place_and_completed(sweep, tmp_path):
    before = tables(sweep)
    publish(sweep, sweep)
    assert sorted(path.name for path in sweep.iterdir()) == [
        "curves.csv",
        "failed.csv",
        "runs.csv",
        "shared.json",
        "statistics.zip",
        "translations.zip",
    ]
    assert_equal(before, tables(sweep))
    folder_of(tmp_path / "work", made_up("alike", 3, 39.0), made_up("new", 1))
    runs = read_results(sweep)  # a run that was made again replaces its row
    assert len(runs) == 11
    assert runs.query("norm == 'alike' and seed == 3")["score"].tolist() == [39.0]
    curves = read_curves(sweep)
    assert not curves.duplicated(["norm", "seed", "subset", "updates"]).any()
    both = tables(sweep)
    publish(sweep, sweep)
    assert_equal(both, tables(sweep))


@pytest.mark.parametrize("value", ["a\rb", "\r", "x" * 200_000, 'a "b",\nc\r\n', "\ufeffa"])
def test_any_text_is_published_as_it_is(value, tmp_path):
    (folder,) = folder_of(tmp_path, made_up(), made_up(seed=2, versions={"torch": value}))
    assert publish_command([str(folder), str(folder)]) == 0
    assert not list(folder.glob("*seed*.json"))
    assert read_results(folder)["versions.torch"].tolist() == ["2.13.0", value]


@pytest.mark.parametrize("name", ["a\rb", "NA", "1.0", "01", 'a "b",\nc\r\n', "true"])
def test_a_run_of_any_name_keeps_its_curves(name, tmp_path):
    (folder,) = folder_of(tmp_path, made_up(norm=name), made_up())
    before = tables(folder)
    publish(folder, folder)
    assert_equal(before, tables(folder))
    assert name in set(read_curves(folder)["norm"])


def test_a_table_that_would_be_read_otherwise_is_not_written(tmp_path, monkeypatch):
    (folder,) = folder_of(tmp_path, made_up(), made_up(seed=2))
    before = {path.name: path.read_bytes() for path in folder.rglob("*.json")}
    monkeypatch.setattr("norm_lab.results.publishing.cell", lambda value: f"{value}\r")
    with pytest.raises(CommandError, match="runs.csv would not be read as it is written"):
        publish(folder, folder)
    assert {path.name: path.read_bytes() for path in folder.rglob("*.*")} == before


@pytest.mark.parametrize("written", range(4))  # of its four files
def test_an_interrupted_publication_changes_no_value(written, tmp_path, monkeypatch):
    """The third run differs in a value that the first two share."""
    first = [made_up(seed=seed, settings__task={"key": 1}) for seed in (1, 2)]
    (folder,) = folder_of(tmp_path, *first)
    publish(folder, folder)
    folder_of(tmp_path, made_up(seed=3, settings__task={"key": 2}))
    before = tables(folder)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(publishing, "write_text", interrupted_after(written))
        publish(folder, folder)
    assert_equal(before, tables(folder))
    publish(folder, folder)
    assert_equal(before, tables(folder))


def interrupted_after(written):
    """``write_text`` that is interrupted before it writes another file."""
    left = iter(range(written))

    def write(path, text):
        if next(left, None) is None:
            raise KeyboardInterrupt
        write_text(path, text)

    return write


def test_what_is_published_replaces_older_files_of_the_same_runs(tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up(bleu=40.0))
    (target,) = folder_of(tmp_path / "results", made_up(bleu=10.0))
    publish(work, target)
    assert read_results(target)["score"].tolist() == [40.0]


def test_publishing_loses_no_run(sweep, tmp_path):
    target = tmp_path / "results"
    publish(sweep, target)
    shutil.copy(target / "runs.csv", tmp_path / "before.csv")
    (sweep / "far-seed3.json").unlink()
    with pytest.raises(CommandError, match=r"results has runs that .* lacks, .*'far', 3\)"):
        publish(sweep, target)
    assert (target / "runs.csv").read_bytes() == (tmp_path / "before.csv").read_bytes()


def test_statistics_that_a_run_does_not_name_are_not_read(sweep):
    (run,) = read_results(sweep).query("norm == 'far' and seed == 1").to_dict("records")
    assert read_artifact(run, STATISTICS) is None and statistics_of(run) is None


def test_the_curves_have_runs_without_a_result(tmp_path):
    (folder,) = folder_of(tmp_path, made_up())
    points = [{"epoch": 1, "updates": 30, "loss": 9.5}]
    write_failure(folder, "gone", 2, curves={"train": [], "valid": points})
    curves = read_curves(folder)
    (lost,) = curves[curves["norm"] == "gone"].dropna(axis="columns").to_dict("records")
    run = {"experiment": "toy_pre", "norm": "gone", "seed": 2, "subset": "valid"}
    assert lost == {**run, **points[0]}
