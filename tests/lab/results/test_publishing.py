"""Publishing loses no run: no failure, no newer run, and none that is written meanwhile."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

import norm_lab.results.folder as reading
from made_up_results import folder_of, made_up, with_translations, write_failure
from norm_lab.results import publishing
from norm_lab.results.artifacts import TRANSLATIONS, artifact_path, read_artifact
from norm_lab.results.folder import read_folder
from norm_lab.results.publishing import LOCK, publish, publish_command
from norm_lab.results.table import read_failures, read_results
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import write_text

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
LINES, OTHERS = ["ein hund .", "eine katze ."], ["ein hund !", "zwei katzen ."]


def content(folder):
    """Every file of a folder with its bytes."""
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def scores(folder):
    runs = read_results(folder)
    return dict(zip(zip(runs["norm"], runs["seed"]), runs["score"]))


def test_a_failure_that_the_source_lacks_is_not_lost(tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up())
    (target,) = folder_of(tmp_path / "results", made_up())
    write_failure(target, "far", 4)
    message = r"results/toy_pre has runs that .*work/toy_pre lacks, \('toy_pre', 'far', 4\); copy"
    for _ in ("as a file", "as a row of failed.csv"):
        before = content(target)
        with pytest.raises(CommandError, match=message):
            publish(work, target)
        assert content(target) == before
        publish(target, target)
    # once it has a result, or another failure, nothing is lost
    write_failure(work, "far", 4, state="failed")
    assert publish(work, target).replaced == [("toy_pre", "far", 4)]
    assert read_failures(target)["state"].tolist() == ["failed"]
    folder_of(tmp_path / "work", made_up("far", 4))
    assert publish(work, target).failures == 0
    assert read_failures(target).empty and not (target / "failed.csv").exists()
    assert scores(target).keys() == {("layernorm", 1), ("far", 4)}


@pytest.mark.parametrize("published", [False, True])
def test_a_newer_run_is_not_replaced_by_an_older_one(published, tmp_path):
    newer = made_up(bleu=40.0, date=NEW)
    (target,) = folder_of(
        tmp_path / "results", with_translations(newer, tmp_path / "results", LINES, LINES)
    )
    if published:
        publish(target, target)
    older = with_translations(made_up(bleu=10.0, date=OLD), tmp_path / "work", OTHERS, LINES)
    (work,) = folder_of(tmp_path / "work", older)
    before = content(target)
    with pytest.raises(CommandError, match=f"of {NEW} .* is newer than that of {OLD} in .*work"):
        publish(work, target)
    assert content(target) == before
    # nor where the older file was copied beside the newer row
    if published:
        (target / "layernorm-seed1.json").write_bytes((work / "layernorm-seed1.json").read_bytes())
        with pytest.raises(CommandError, match="is newer than"):
            publish(target, target)
        assert (target / "layernorm-seed1.json").exists()


@pytest.mark.parametrize("where", ["work", "results"])
def test_a_newer_failure_is_not_replaced_by_an_older_result(where, tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up(date=OLD))
    (target,) = folder_of(tmp_path / "results", made_up(date=OLD))
    publish(target, target)
    write_failure(tmp_path / where / "toy_pre", "layernorm", 1, date=NEW)
    with pytest.raises(CommandError, match="no results in|the run .* \\(diverged\\), which"):
        publish(work, target)
    assert list((tmp_path / where).rglob("layernorm-seed1.json"))


def test_what_is_replaced_is_said(tmp_path, capsys):
    (work,) = folder_of(tmp_path / "work", made_up(bleu=40.0, date=NEW), made_up(seed=2))
    (target,) = folder_of(tmp_path / "results", made_up(bleu=10.0, date=OLD), made_up(seed=2))
    for lines in (["replaced an older run: toy_pre, layernorm, seed 1"], []):
        publish_command([str(work), str(target)])
        assert capsys.readouterr().out.splitlines()[1:] == lines
    assert scores(target) == {("layernorm", 1): 40.0, ("layernorm", 2): 35.0}


def test_a_kept_file_that_is_missing_is_not_dropped_from_the_archive(tmp_path):
    run = with_translations(made_up(), tmp_path / "work", LINES, LINES)
    (work,) = folder_of(tmp_path / "work", run)
    target = tmp_path / "results"
    publish(work, target)
    artifact_path(work / "layernorm-seed1.json", TRANSLATIONS).unlink()
    before = content(target)
    with pytest.raises(CommandError, match=r"hyp\.txt\.gz is missing, but a result names it"):
        publish(work, target)
    assert content(target) == before


def write_another(folder):
    """A run that finishes."""
    folder_of(folder.parent, with_translations(made_up("new"), folder.parent, LINES, LINES))


def write_again(folder):
    """A run that is repeated: its files, then its result."""
    again = made_up(bleu=99.0, date=NEW)
    folder_of(folder.parent, with_translations(again, folder.parent, OTHERS, LINES))


def write_files_alone(folder):
    """A run that is repeated, between its files and its result."""
    with_translations(made_up(bleu=99.0, date=NEW), folder.parent, OTHERS, LINES)


def write_a_failure(folder):
    """A run that diverges."""
    write_failure(folder, "far", 4)


def write_the_failure_again(folder):
    """A run that fails once more, otherwise."""
    write_failure(folder, "failing", 1, state="failed", reason="another reason", date=NEW)


RUNS = [write_another, write_again, write_files_alone, write_a_failure, write_the_failure_again]


def finished_folder(tmp_path):
    run = with_translations(made_up(date=OLD), tmp_path, LINES, LINES)
    (folder,) = folder_of(tmp_path, run)
    write_failure(folder, "failing", 1)
    return folder


def assert_nothing_is_lost(folder, write):
    runs = {(run["norm"], run["seed"]): run for run in read_results(folder).to_dict("records")}
    lines = LINES
    if write is write_again:
        assert runs["layernorm", 1]["score"] == 99.0
        lines = OTHERS
    assert read_artifact(runs["layernorm", 1], TRANSLATIONS).splitlines() == lines
    if write is write_another:
        assert read_artifact(runs["new", 1], TRANSLATIONS).splitlines() == LINES
    failures = read_failures(folder)
    assert ("far" in set(failures["norm"])) == (write is write_a_failure)
    (state,) = failures.query("norm == 'failing'")["state"]
    assert state == ("failed" if write is write_the_failure_again else "diverged")


@pytest.mark.parametrize("write", RUNS)
@pytest.mark.parametrize("moment", range(5))  # before each of its five files
def test_what_a_run_writes_meanwhile_is_kept(write, moment, tmp_path, monkeypatch):
    folder = finished_folder(tmp_path)
    left = iter(range(moment))

    def write_file(path, text):
        if next(left, None) is None and not written:
            written.append(path)
            write(folder)
        write_text(path, text)

    written: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write_text", write_file)
        publish(folder, folder)
    assert written
    assert_nothing_is_lost(folder, write)
    if write is not write_files_alone:
        publish(folder, folder)
    assert_nothing_is_lost(folder, write)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_again, "layernorm-seed1.json"),
        (write_files_alone, "layernorm-seed1.hyp.txt.gz"),
        (write_the_failure_again, "failing-seed1.json"),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_is_written_just_before_it_is_removed_is_kept(
    write, name, times, tmp_path, monkeypatch
):
    """Between the comparison and the removal; and once more before it is put back."""
    folder = finished_folder(tmp_path)
    rename, link = os.rename, os.link

    def rename_later(source, destination):
        if source.name == name:
            write(folder)
        rename(source, destination)

    def link_later(source, destination):
        if times == 2:
            write(folder)
        link(source, destination)

    monkeypatch.setattr(os, "rename", rename_later)
    monkeypatch.setattr(os, "link", link_later)
    publish(folder, folder)
    assert list(folder.rglob(name))
    assert_nothing_is_lost(folder, write)
    assert not list(folder.rglob("*.removed"))


def test_a_run_that_ends_before_the_folder_is_locked(tmp_path, monkeypatch):
    folder = finished_folder(tmp_path)
    lock = publishing._lock

    def write_first(target):
        monkeypatch.undo()
        write_another(folder)
        return lock(target)

    monkeypatch.setattr(publishing, "_lock", write_first)
    assert publish(folder, folder).runs == 2


def test_two_commands_do_not_publish_into_one_folder(tmp_path):
    (work,) = folder_of(tmp_path / "work", made_up())
    target = tmp_path / "results"
    target.mkdir()
    with open(target / LOCK, "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(CommandError, match="is being published by another command"):
            publish(work, target)
    publish(work, target)
    assert not (target / LOCK).exists()


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
    read = read_folder(folder)
    assert read.results == [] and read.rows.keys() == {("toy_pre", "layernorm", 1)}


def test_tables_that_are_published_while_they_are_read(tmp_path, monkeypatch):
    """A value moves from the rows to what they share when a run is repeated with that of others."""
    first = [made_up(seed=seed, date=OLD, settings__task={"key": seed}) for seed in (1, 2)]
    (folder,) = folder_of(tmp_path, *first)
    publish(folder, folder)
    csv_rows = reading._csv_rows

    def publish_first(path):
        if path.name == "runs.csv":
            monkeypatch.undo()
            folder_of(tmp_path, made_up(seed=2, date=NEW, settings__task={"key": 1}))
            publish(folder, folder)
        return csv_rows(path)

    monkeypatch.setattr(reading, "_csv_rows", publish_first)
    rows = read_folder(folder).rows.values()
    assert [row["settings.task.key"] for row in rows] == [1, 1]
