"""Publishing loses no run: no failure, no newer run, and none that is written meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from made_up_results import folder_of, made_up, with_translations, write_failure
from norm_lab.results import folder as results_folder
from norm_lab.results.folder import PUBLISHED_OUTPUTS, RUNS, read_folder
from norm_lab.results.publishing import publish, publish_command
from norm_lab.results.table import Results, read_results
from norm_plugin.io.command_line import CommandError

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
LINES, OTHERS = ["ein hund .", "eine katze ."], ["ein hund !", "zwei katzen ."]


def scores(folder):
    runs = read_results(folder)
    return dict(zip(zip(runs["norm"], runs["seed"]), runs["score"]))


def test_the_runs_of_the_target_are_kept(tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up())
    (target,) = folder_of(tmp_path / "results", made_up("other"))
    write_failure(target, "far", 4)
    (target / "tuned.json").write_text("[]")  # what `tune` writes to the folder of a study
    publish(work, target)
    assert (target / "tuned.json").read_text() == "[]"
    assert scores(target).keys() == {("layernorm", 1), ("other", 1)}
    assert Results(target).failures["norm"].tolist() == ["far"]
    write_failure(work, "far", 4, state="failed", date=NEW)
    assert publish(work, target).replaced == [("toy_pre", "far", 4)]
    assert Results(target).failures["state"].tolist() == ["failed"]
    folder_of(tmp_path / "work", made_up("far", 4))
    assert publish(work, target).failures == 0 and Results(target).failures.empty


def test_the_newer_of_two_versions_of_a_run_is_kept_and_named(tmp_path, capsys):
    (work,) = folder_of(tmp_path / "work", made_up(bleu=40.0, date=NEW), made_up(seed=2, date=OLD))
    (target,) = folder_of(
        tmp_path / "results", made_up(bleu=10.0, date=OLD), made_up(seed=2, bleu=1.0, date=NEW)
    )
    publish_command([str(work), str(target)])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "replaced an older run: toy_pre, layernorm, seed 1",
        "kept a newer run: toy_pre, layernorm, seed 2",
    ]
    assert scores(target) == {("layernorm", 1): 40.0, ("layernorm", 2): 1.0}
    assert not list(target.glob("*.json"))


def test_a_result_is_not_replaced_by_a_newer_failure(tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up("other"))
    (target,) = folder_of(tmp_path / "results", made_up(date=OLD))
    publish(target, target)
    write_failure(work, "layernorm", 1, date=NEW)
    publish(work, target)
    assert scores(target).keys() == {("layernorm", 1), ("other", 1)}


def write_another(folder):
    """A run that finishes."""
    folder_of(folder.parent, with_translations(made_up("new"), LINES, LINES))


def write_again(folder):
    """A run that is repeated."""
    folder_of(folder.parent, with_translations(made_up(bleu=99.0, date=NEW), OTHERS, LINES))


def write_a_failure(folder):
    """A run that diverges."""
    write_failure(folder, "far", 4)


def finished_folder(tmp_path):
    (folder,) = folder_of(tmp_path, with_translations(made_up(date=OLD), LINES, LINES))
    write_failure(folder, "failing", 1)
    return folder


def assert_nothing_is_lost(folder, write):
    runs = {(run["norm"], run["seed"]): run for run in read_results(folder).to_dict("records")}
    assert runs["layernorm", 1]["translations"] == (OTHERS if write is write_again else LINES)
    assert (("new", 1) in runs) == (write is write_another)
    failed = {"failing", "far"} if write is write_a_failure else {"failing"}
    assert set(Results(folder).failures["norm"]) == failed


@pytest.mark.parametrize("write", [write_another, write_again, write_a_failure])
def test_what_a_run_writes_meanwhile_is_kept(write, tmp_path, monkeypatch):
    folder = finished_folder(tmp_path)

    replace = os.replace

    def write_first(source, target):
        patch.undo()
        write(folder)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", write_first)
        publish(folder, folder)
    assert_nothing_is_lost(folder, write)
    publish(folder, folder)
    assert_nothing_is_lost(folder, write)
    assert not list(folder.glob("*.json"))


def test_a_target_that_is_a_file_and_a_half_of_a_published_folder_are_refused(tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up())
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot create .*file: File exists; choose another TO"):
        publish(work, tmp_path / "file")
    publish(work, work)
    (work / PUBLISHED_OUTPUTS).unlink()  # as if .gitignore had *.gz
    with pytest.raises(
        CommandError, match="outputs.jsonl.gz is missing, or not that of .*runs.jsonl"
    ):
        read_results(work)


def test_two_commands_do_not_publish_into_one_folder(tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up())
    target = tmp_path / "results"
    target.mkdir()
    other = os.open(target, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(CommandError, match="is being published by another command"):
        publish(work, target)
    os.close(other)
    publish(work, target)


def version(month):
    """A run that is published: its score, and in the other file its least loss."""
    curves = {"valid": [{"epoch": 1, "updates": 30, "loss": float(month)}]}
    return made_up(bleu=30.0 + month, date=f"2026-{month:02}-01T00:00:00Z", curves=curves)


def as_before(folder):
    """Make a published folder one of an earlier version, which had no digest."""
    first, *others = (folder / RUNS).read_text().splitlines(keepends=True)
    shared = json.loads(first)
    shared.pop("outputs_sha256", None)
    (folder / RUNS).write_text("".join([json.dumps(shared) + "\n", *others]))


def published(tmp_path, *, old=False):
    """A published folder with version 1, and the folder of version 2."""
    (target,) = folder_of(tmp_path / "results", version(1))
    publish(target, target)
    if old:
        as_before(target)
    (work,) = folder_of(tmp_path / "work", version(2))
    return work, target


def month_of(folder):
    """The version of the only run, of which no file has another one."""
    (run,) = read_results(folder).to_dict("records")
    assert run["score"] == 30.0 + run["valid_loss"]
    return run["valid_loss"]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_publish_that_ends_at_any_step_leaves_one_version(step, old, tmp_path, monkeypatch):
    work, target = published(tmp_path, old=old)
    replace = os.replace

    def stopping_at(number):
        steps = iter(range(3))

        def replace_or_stop(source, to):
            if next(steps) == number:
                raise KeyboardInterrupt
            replace(source, to)

        return replace_or_stop

    for again in range(3):  # and one that is stopped after it
        copy = shutil.copytree(target, tmp_path / f"copy{again}")
        (target / f"{RUNS}.0123abcd.tmp").touch()  # of one that was killed
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "replace", stopping_at(step))
            publish(work, target)
        assert month_of(target) == (2 if step == 2 else 1)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "replace", stopping_at(again))
            publish(work, target)
        assert month_of(target) in (1, 2)
        publish(work, target)
        assert month_of(target) == 2
        assert sorted(path.name for path in target.iterdir()) == [PUBLISHED_OUTPUTS, RUNS]
        shutil.rmtree(target)
        copy.rename(target)


@pytest.mark.parametrize("old", [False, True])
def test_a_folder_that_is_published_between_its_two_files_is_read_again(old, tmp_path, monkeypatch):
    work, target = published(tmp_path, old=old)
    parse_json = results_folder.parse_json

    def publish_first(text, path, finite):
        monkeypatch.undo()
        publish(work, target)
        return parse_json(text, path, finite)

    monkeypatch.setattr(results_folder, "parse_json", publish_first)
    assert month_of(target) == 2


def test_outputs_of_other_runs_are_refused(tmp_path):
    work, target = published(tmp_path)
    before = (target / PUBLISHED_OUTPUTS).read_bytes()
    publish(work, target)
    (target / PUBLISHED_OUTPUTS).write_bytes(before)  # as after a merge of one file
    with pytest.raises(CommandError, match="outputs.jsonl.gz is missing, or not that of .*runs"):
        read_results(target)


def test_what_cannot_be_encoded_leaves_the_target_as_it_is(tmp_path):
    work, target = published(tmp_path)
    (work / "layernorm-seed1.json").write_text(json.dumps({**version(2), "sites": "\ud800"}))
    with pytest.raises((CommandError, UnicodeEncodeError)):
        publish(work, target)
    assert month_of(target) == 1


def test_a_file_that_the_published_run_is_newer_than_stays_and_is_named(tmp_path, capsys):
    (folder,) = folder_of(tmp_path, made_up(bleu=30.0, date=NEW))
    publish(folder, folder)
    folder_of(tmp_path, made_up(bleu=99.0, date=OLD))  # run later, by a clock that was set back
    write_failure(folder, "failing", 1)
    publish_command([str(folder), str(folder)])
    assert "kept a newer run: toy_pre, layernorm, seed 1" in capsys.readouterr().out
    assert scores(folder) == {("layernorm", 1): 30.0}
    assert [path.name for path in folder.glob("*.json")] == ["layernorm-seed1.json"]
    assert json.loads((folder / "layernorm-seed1.json").read_text())["date"] == OLD


def test_a_file_that_is_published_while_the_folder_is_read(tmp_path, monkeypatch):
    """It is listed, then gone; its row is read afterwards."""
    folder = finished_folder(tmp_path)
    read_bytes = Path.read_bytes

    def publish_first(path):
        if path.name == "layernorm-seed1.json":
            monkeypatch.undo()
            publish(folder, folder)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", publish_first)
    assert [run["norm"] for run in read_folder(folder).finished] == ["layernorm"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "runs.jsonl is empty"),
        (b"[]\n", "has a line that is no JSON object"),
        (b'{"a": Infinity}\n', "is not JSON: Infinity is no number"),
        (b"\xff\n", "is not JSON"),
    ],
)
def test_published_runs_that_were_cut_or_edited_are_refused_in_one_line(tmp_path, content, message):
    _, target = published(tmp_path)
    (target / RUNS).write_bytes(content)
    with pytest.raises(CommandError, match=message):
        read_results(target)


def test_a_run_that_stands_twice_is_refused(tmp_path):
    _, target = published(tmp_path)
    lines = (target / RUNS).read_text().splitlines(keepends=True)
    (target / RUNS).write_text("".join([*lines, lines[-1]]))
    with pytest.raises(CommandError, match="runs.jsonl has toy_pre, layernorm, 1 twice"):
        read_results(target)


def test_a_table_that_lost_its_last_line_is_refused(tmp_path):
    _, target = published(tmp_path)
    lines = (target / RUNS).read_text().splitlines(keepends=True)
    (target / RUNS).write_text("".join(lines[:-1]))
    with pytest.raises(CommandError, match="runs.jsonl lacks toy_pre, layernorm, 1, which"):
        read_results(target)


def test_outputs_that_were_cut_are_refused(tmp_path):
    _, target = published(tmp_path, old=True)
    packed = (target / PUBLISHED_OUTPUTS).read_bytes()
    (target / PUBLISHED_OUTPUTS).write_bytes(packed[:-9])
    with pytest.raises(CommandError, match="outputs.jsonl.gz is damaged"):
        read_results(target)


def test_a_pipe_among_results_is_not_waited_for(tmp_path):
    (folder,) = folder_of(tmp_path, version(1))
    os.mkfifo(folder / "x-seed1.json")
    assert len(read_results(folder)) == 1
