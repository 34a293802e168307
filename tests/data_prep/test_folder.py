"""OUT appears complete or not at all, and its manifest says what it holds."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading

import pytest

from norm_plugin.io.command_line import CommandError
from prep import files, folder
from prep.files import SPLITS, write_lines

RAW_COUNTS = {"train.en": {"lines": 3, "tokens": 5}}


def data_spec(**settings):
    made = folder.make_data_spec("tiny", "en", "de", settings)
    return {**made, "inputs": {"a.en": "0" * 64}}


def build(work, text="a b c\nd\n", bpe=False):
    """A corpus without any model behind it: the files that `publish` looks at."""
    for language in ("en", "de"):
        for split in SPLITS:
            write_lines(work / "tok" / f"{split}.{language}", text.splitlines())
            if bpe:
                write_lines(work / "bpe" / f"{split}.{language}", ["a@@ b"])
        write_lines(work / "bin" / f"dict.{language}.txt", ["a 1"])
    return RAW_COUNTS


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


def test_manifest_counts_and_digests(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is taken
    checksum = publish(out, data_spec(merges=1), build, overwrite=False)
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
    assert set(written["versions"]) == {"python", *folder.TOOLS} - {"fairseq-fixed"}
    assert names(tmp_path) == [".out.lock", "out"]
    capsys.readouterr()
    assert publish(out, data_spec(merges=1), never, overwrite=False) == checksum
    assert "nothing to do" in capsys.readouterr().err


def test_checksum_changes_with_one_byte_and_not_with_the_place(tmp_path):
    first = publish(tmp_path / "first", data_spec(), build, overwrite=False)
    same = publish(tmp_path / "same", data_spec(), build, overwrite=False)
    other = publish(tmp_path / "x", data_spec(), lambda w: build(w, "a b c\ne\n"), False)
    assert first == same != other
    publish(tmp_path / "bpe", data_spec(), lambda work: build(work, bpe=True), overwrite=False)
    digests = folder.read_manifest(tmp_path / "bpe")["files"]
    assert "bpe/train.en" in digests and "tok/train.en" not in digests


def test_other_settings_or_inputs_or_a_lost_file_are_an_error(tmp_path):
    out = tmp_path / "out"
    publish(out, data_spec(merges=1), build, overwrite=False)
    with pytest.raises(
        CommandError, match=r'"merges": 1.*"merges": 2.*another --out or .*--overwrite'
    ):
        publish(out, data_spec(merges=2), never, overwrite=False)
    with pytest.raises(CommandError, match="other input files"):
        publish(out, {**data_spec(merges=1), "inputs": {"a.en": "1" * 64}}, never, overwrite=False)
    publish(out, data_spec(merges=2), build, overwrite=True)
    assert folder.read_manifest(out)["settings"] == {"merges": 2}
    assert names(tmp_path) == [".out.lock", "out"]
    (out / "bin/dict.en.txt").unlink()
    with pytest.raises(CommandError, match=r"lacks bin/dict\.en\.txt; pass --overwrite"):
        publish(out, data_spec(merges=2), never, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_somebody_else_is_never_touched(tmp_path, overwrite):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(CommandError, match="not a prepared corpus; choose another --out"):
        publish(tmp_path / "out", data_spec(), build, overwrite)
    assert names(tmp_path / "out") == ["thesis.txt"]


def test_failure_in_the_middle_leaves_nothing_new(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(CommandError, match="in the middle"):
        publish(out, data_spec(), fail, overwrite=False)
    assert names(tmp_path) == [".out.lock"]
    checksum = publish(out, data_spec(), build, overwrite=False)
    with pytest.raises(CommandError, match="in the middle"):
        publish(out, data_spec(merges=2), fail, overwrite=True)
    assert publish(out, data_spec(), never, overwrite=False) == checksum


def test_a_stop_between_the_two_renames_keeps_the_old(tmp_path, monkeypatch):
    out = tmp_path / "out"
    checksum = publish(out, data_spec(), build, overwrite=False)
    rename, sources = os.rename, []

    def stop_at_the_second(source, target):
        sources.append(source)
        if len(sources) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        publish(out, data_spec(merges=2), build, overwrite=True)
    assert names(tmp_path) == [".out.lock", "out"]
    assert publish(out, data_spec(), never, overwrite=False) == checksum


def test_a_second_process_waits_and_then_has_nothing_to_do(tmp_path, monkeypatch):
    out, messages, checksums = tmp_path / "out", [], []
    waits = threading.Event()

    def hear(message):
        messages.append(message)
        waits.set()

    monkeypatch.setattr(files, "report", hear)
    monkeypatch.setattr(folder, "report", messages.append)
    second = threading.Thread(
        target=lambda: checksums.append(publish(out, data_spec(), never, False))
    )
    with open(tmp_path / ".out.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert waits.wait(timeout=30)
        build(out)
        folder.write_manifest(out, data_spec(), {})
    second.join(timeout=30)
    assert checksums == [folder.read_manifest(out)["checksum"]]
    assert "another process is preparing" in messages[0] and "nothing to do" in messages[1]
