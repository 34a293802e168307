"""Publishing loses no run: no failure, no newer run, and none that is written meanwhile."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from made_up_results import folder_of, made_up, with_translations, write_failure
from norm_lab.results import publishing
from norm_lab.results.folder import PUBLISHED_OUTPUTS, read_folder
from norm_lab.results.publishing import publish, publish_command
from norm_lab.results.table import read_failures, read_results
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import write_text

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
    assert read_failures(target)["norm"].tolist() == ["far"]
    write_failure(work, "far", 4, state="failed", date=NEW)
    assert publish(work, target).replaced == [("toy_pre", "far", 4)]
    assert read_failures(target)["state"].tolist() == ["failed"]
    folder_of(tmp_path / "work", made_up("far", 4))
    assert publish(work, target).failures == 0 and read_failures(target).empty


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
    assert scores(target) == scores(target) and not list(target.glob("*.json"))


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
    assert set(read_failures(folder)["norm"]) == failed


@pytest.mark.parametrize("write", [write_another, write_again, write_a_failure])
def test_what_a_run_writes_meanwhile_is_kept(write, tmp_path, monkeypatch):
    folder = finished_folder(tmp_path)

    def write_file(path, text):
        write(folder)
        write_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write_text", write_file)
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
    with pytest.raises(CommandError, match="cannot read .*outputs.jsonl.gz: No such file"):
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
