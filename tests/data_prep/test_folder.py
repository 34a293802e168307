"""OUT appears complete or not at all, and its manifest says what it holds."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from norm_plugin.commands.command_line import CommandError
from prep import files, folder
from prep.files import SPLITS, write_lines

DATA_PREP = Path(folder.__file__).parents[1]


def recipe(**settings):
    return folder.make_recipe("tiny", "en", "de", settings, {"a.en": "0" * 64})


RAW_COUNTS = {"train.en": {"lines": 3, "tokens": 5}}


def build(work, text="a b c\nd\n"):
    """A corpus without any model behind it: the files that `publish` looks at."""
    for split in SPLITS:
        for language in ("en", "de"):
            write_lines(work / "tok" / f"{split}.{language}", text.splitlines())
    for language in ("en", "de"):
        write_lines(work / "bin" / f"dict.{language}.txt", ["a 1"])
    return RAW_COUNTS


def binarize(work, content="binary"):
    for split in SPLITS:
        for language in ("en", "de"):
            for suffix in ("bin", "idx"):
                write_lines(work / f"{split}.en-de.{language}.{suffix}", [content])
    for language in ("en", "de"):
        write_lines(work / f"dict.{language}.txt", ["a 1"])


def fail(work):
    build(work)
    raise CommandError("in the middle")


def never(work):
    raise AssertionError("built again")


def names(place):
    return sorted(path.name for path in place.iterdir())


def publish(out, *args, **options):
    """Publish a corpus; returns its checksum."""
    folder.publish(out, *args, **options)
    return folder.read_manifest(out)["checksum"]


def test_manifest_counts_and_digests(tmp_path):
    out = tmp_path / "out"
    publish(out, recipe(merges=1), build, overwrite=False)
    written = json.loads((out / "manifest.json").read_text())
    assert written["counts"] == {
        "raw": RAW_COUNTS,
        "tok": {f"{s}.{x}": {"lines": 2, "tokens": 4} for s in SPLITS for x in ("en", "de")},
    }
    assert written["settings"] == {"merges": 1}
    assert written["files"]["tok/train.en"] == hashlib.sha256(b"a b c\nd\n").hexdigest()
    assert len(written["files"]) == 8
    # The overall checksum, again from its definition.
    lines = sorted(f"{digest}  {name}\n" for name, digest in written["files"].items())
    assert written["checksum"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert set(written["versions"]) == {"python", *folder.TOOLS}
    assert names(tmp_path) == [".out.lock", "out"]


def test_checksum_changes_with_one_byte_and_not_with_the_place(tmp_path):
    one = publish(tmp_path / "one", recipe(), build, overwrite=False)
    same = publish(tmp_path / "same", recipe(), build, overwrite=False)
    other = publish(tmp_path / "x", recipe(), lambda w: build(w, "a b c\ne\n"), False)
    assert one == same != other


def test_checksum_takes_bpe_text_where_there_is_bpe(tmp_path):
    def with_bpe(work):
        build(work)
        (work / "bpe").mkdir()
        for path in (work / "tok").iterdir():
            write_lines(work / "bpe" / path.name, ["a@@ b"])
        return {}

    publish(tmp_path / "out", recipe(), with_bpe, overwrite=False)
    files = folder.read_manifest(tmp_path / "out")["files"]
    assert "bpe/train.en" in files and "tok/train.en" not in files


def test_the_same_again_does_nothing(tmp_path, capsys):
    first = publish(tmp_path / "out", recipe(), build, overwrite=False)
    capsys.readouterr()
    assert publish(tmp_path / "out", recipe(), never, overwrite=False) == first
    assert "nothing to do" in capsys.readouterr().err


def test_other_settings_or_inputs_are_an_error(tmp_path):
    out = tmp_path / "out"
    publish(out, recipe(merges=1), build, overwrite=False)
    with pytest.raises(
        CommandError, match=r'"merges": 1.*"merges": 2.*another --out or .*--overwrite'
    ):
        publish(out, recipe(merges=2), never, overwrite=False)
    other = {**recipe(merges=1), "inputs": {"a.en": "1" * 64}}
    with pytest.raises(CommandError, match="other input files"):
        publish(out, other, never, overwrite=False)
    publish(out, recipe(merges=2), build, overwrite=True)
    assert folder.read_manifest(out)["settings"] == {"merges": 2}
    assert names(tmp_path) == [".out.lock", "out"]


@pytest.mark.parametrize("lost", ["bin/dict.en.txt", "tok/test.en"])
def test_a_lost_file_is_named(tmp_path, lost):
    out = tmp_path / "out"
    publish(out, recipe(), build, overwrite=False)
    (out / lost).unlink()
    with pytest.raises(CommandError, match=f"lacks {lost}; pass --overwrite"):
        publish(out, recipe(), never, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_somebody_else_is_never_touched(tmp_path, overwrite):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(CommandError, match="not a prepared corpus; choose another --out"):
        publish(tmp_path / "out", recipe(), build, overwrite)
    assert names(tmp_path / "out") == ["thesis.txt"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    publish(tmp_path / "out", recipe(), build, overwrite=False)
    assert "manifest.json" in names(tmp_path / "out")


def test_failure_in_the_middle_leaves_nothing(tmp_path):
    with pytest.raises(CommandError, match="in the middle"):
        publish(tmp_path / "out", recipe(), fail, overwrite=False)
    assert names(tmp_path) == [".out.lock"]


def test_failure_while_overwriting_keeps_the_old(tmp_path):
    out = tmp_path / "out"
    first = publish(out, recipe(), build, overwrite=False)
    with pytest.raises(CommandError, match="in the middle"):
        publish(out, recipe(merges=2), fail, overwrite=True)
    assert publish(out, recipe(), never, overwrite=False) == first


def test_after_a_kill_the_same_command_starts_again(tmp_path):
    out = tmp_path / "out"
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from prep import files, folder; from pathlib import Path\n"
        "def build(work):\n"
        "    files.write_lines(work / 'tok' / 'train.en', ['half'])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "folder.publish(Path(sys.argv[2]), {}, build, False)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, DATA_PREP, out], check=False)
    assert killed.returncode == -9
    assert len([name for name in names(tmp_path) if name.startswith("out.tmp-")]) == 1
    assert not out.exists()
    like = ["out.tmp-1.txt", "out.tmp-mine"]  # names that look like ours and are not
    for name in like:
        (tmp_path / name).mkdir()
    publish(out, recipe(), build, overwrite=False)
    assert names(tmp_path) == [".out.lock", "out", *like]


def test_what_a_killed_run_left_beside_a_complete_one_is_cleared(tmp_path):
    out = tmp_path / "out"
    first = publish(out, recipe(), build, overwrite=False)
    left = [tmp_path / "out.tmp-123", out / "bin.tmp-123", out / "bin.tmp-123.old"]
    for place in left:
        place.mkdir()
    with open(tmp_path / ".out.lock", "w") as lock:  # a run that is alive: it may be its own
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert publish(out, recipe(), never, overwrite=False) == first
        assert all(place.exists() for place in left)
    assert publish(out, recipe(), never, overwrite=False) == first
    assert not any(place.exists() for place in left)


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    out = tmp_path / "out"
    first = publish(out, recipe(), build, overwrite=False)
    os.rename(out, tmp_path / "out.tmp-123.old")
    assert publish(out, recipe(), never, overwrite=False) == first
    assert names(tmp_path) == [".out.lock", "out"]


def test_a_second_process_waits_and_then_has_nothing_to_do(tmp_path, monkeypatch):
    out, said, results = tmp_path / "out", [], []
    waits = threading.Event()

    def hear(message):
        said.append(message)
        waits.set()

    monkeypatch.setattr(files, "report", hear)
    monkeypatch.setattr(folder, "report", said.append)
    second = threading.Thread(target=lambda: results.append(publish(out, recipe(), never, False)))
    with open(tmp_path / ".out.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert waits.wait(timeout=30)
        build(out)
        folder.write_manifest(out, recipe(), {})
    second.join(timeout=30)
    assert results == [folder.read_manifest(out)["checksum"]]
    assert "another process is preparing" in said[0] and "nothing to do" in said[1]


def test_a_stop_between_the_two_renames_keeps_the_old(tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = publish(out, recipe(), build, overwrite=False)
    rename, made = os.rename, []

    def stop_at_the_second(source, target):
        made.append(source)
        if len(made) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        publish(out, recipe(merges=2), build, overwrite=True)
    assert names(tmp_path) == [".out.lock", "out"]
    assert publish(out, recipe(), never, overwrite=False) == first


# ---- bin/ ---------------------------------------------------------------------------------------


@pytest.fixture
def prepared(tmp_path):
    publish(tmp_path / "out", recipe(), build, overwrite=False)
    return tmp_path / "out"


def test_binarizing_is_done_once_and_again_when_something_changed(prepared, monkeypatch, capsys):
    folder.publish_binary(prepared, recipe(), binarize, overwrite=False)
    capsys.readouterr()
    folder.publish_binary(prepared, recipe(), never, overwrite=False)
    assert "nothing to do" in capsys.readouterr().err
    # A file of the same size and other content, as a failing disk leaves it.
    changed = prepared / "bin" / "test.en-de.en.bin"
    changed.write_bytes(b"y" * changed.stat().st_size)
    folder.publish_binary(prepared, recipe(), binarize, overwrite=False)
    assert changed.read_text() == "binary\n"
    with monkeypatch.context() as other:
        other.setattr(folder, "tool_versions", lambda: {"fairseq": "another"})
        folder.publish_binary(
            prepared, recipe(), lambda work: binarize(work, "later"), overwrite=False
        )
    assert changed.read_text() == "later\n"
    publish(prepared, recipe(merges=3), lambda w: build(w, "other\n"), overwrite=True)
    assert names(prepared / "bin") == ["dict.de.txt", "dict.en.txt"]
    folder.publish_binary(prepared, recipe(), lambda work: binarize(work, "new"), overwrite=False)
    assert changed.read_text() == "new\n"
    assert names(prepared) == ["bin", "manifest.json", "tok"]


def test_a_complete_corpus_is_used_where_nothing_can_be_written(prepared, capsys):
    folder.publish_binary(prepared, recipe(), binarize, overwrite=False)
    lock = prepared.parent / ".out.lock"
    lock.unlink()
    lock.mkdir()  # cannot be opened, not even by root
    (prepared / "bin.tmp-123").mkdir()
    capsys.readouterr()
    publish(prepared, recipe(), never, overwrite=False)
    folder.publish_binary(prepared, recipe(), never, overwrite=False)
    assert capsys.readouterr().err.count("nothing to do") == 2


def test_binarizing_leaves_the_identity_of_the_data_alone(prepared):
    before = (prepared / "manifest.json").read_bytes()
    folder.publish_binary(prepared, recipe(), binarize, overwrite=False)
    assert (prepared / "manifest.json").read_bytes() == before
    publish(prepared, recipe(), never, overwrite=False)


def test_there_is_nothing_to_binarize_before_prepare(tmp_path):
    with pytest.raises(CommandError, match=r"no prepared text to binarize; run --only prepare"):
        folder.publish_binary(tmp_path / "out", recipe(), never, overwrite=False)


@pytest.mark.parametrize("other", [{"corpus": "small"}, {"source": "de", "target": "en"}])
def test_the_text_of_another_corpus_or_direction_is_not_binarized(prepared, other):
    key, value = next(iter(other.items()))
    with pytest.raises(
        CommandError, match=rf'prepared with {key} ".*", not "{value}".*another --out'
    ):
        folder.publish_binary(prepared, {**recipe(), **other}, never, overwrite=True)
    assert names(prepared / "bin") == ["dict.de.txt", "dict.en.txt"]


def test_a_failure_while_binarizing_keeps_the_text(prepared):
    def full(work):
        binarize(work)
        raise OSError(28, "No space left on device")

    with pytest.raises(CommandError, match=r"cannot make .*bin: .*No space left"):
        folder.publish_binary(prepared, recipe(), full, overwrite=False)
    assert names(prepared) == ["bin", "manifest.json", "tok"]
    assert names(prepared / "bin") == ["dict.de.txt", "dict.en.txt"]


def test_a_kill_while_bin_is_replaced_loses_nothing(prepared):
    os.rename(prepared / "bin", prepared / "bin.tmp-123.old")
    (prepared / "bin.tmp-123").mkdir()
    publish(prepared, recipe(), never, overwrite=False)
    assert names(prepared) == ["bin", "manifest.json", "tok"]
