"""OUT appears complete or not at all, and its manifest says what it holds."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from prep import locks, manifest, publishing, text_files
from prep.exit_status import STOPPING, run_command
from prep.messages import PrepError
from prep.text_files import SPLITS

DATA_PREP = Path(publishing.__file__).parents[1]


def recipe(**settings):
    return manifest.make_recipe("tiny", "en", "de", settings, {"a.en": "0" * 64})


RAW_COUNTS = {"train.en": {"lines": 3, "tokens": 5}}


def build(work, text="a b c\nd\n"):
    """A corpus without any model behind it: the files that `publish` looks at."""
    for split in SPLITS:
        for language in ("en", "de"):
            text_files.write_lines(work / "tok" / f"{split}.{language}", text.splitlines())
    for language in ("en", "de"):
        text_files.write_lines(work / "bin" / f"dict.{language}.txt", ["a 1"])
    return RAW_COUNTS


def binarize(work, content="binary"):
    for split in SPLITS:
        for language in ("en", "de"):
            for suffix in ("bin", "idx"):
                text_files.write_lines(work / f"{split}.en-de.{language}.{suffix}", [content])
    for language in ("en", "de"):
        text_files.write_lines(work / f"dict.{language}.txt", ["a 1"])


def fail(work):
    build(work)
    raise PrepError("in the middle")


def never(work):
    raise AssertionError("built again")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_manifest_counts_and_digests(tmp_path):
    out = tmp_path / "out"
    checksum = publishing.publish(out, recipe(merges=1), build, overwrite=False)
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
    assert checksum == written["checksum"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert set(written["versions"]) == {"python", *manifest.TOOLS}
    assert names(tmp_path) == [".out.lock", "out"]


def test_checksum_changes_with_one_byte_and_not_with_the_place(tmp_path):
    one = publishing.publish(tmp_path / "one", recipe(), build, overwrite=False)
    same = publishing.publish(tmp_path / "same", recipe(), build, overwrite=False)
    other = publishing.publish(tmp_path / "x", recipe(), lambda w: build(w, "a b c\ne\n"), False)
    assert one == same != other


def test_checksum_takes_bpe_text_where_there_is_bpe(tmp_path):
    def with_bpe(work):
        build(work)
        (work / "bpe").mkdir()
        for path in (work / "tok").iterdir():
            text_files.write_lines(work / "bpe" / path.name, ["a@@ b"])
        return {}

    publishing.publish(tmp_path / "out", recipe(), with_bpe, overwrite=False)
    files = manifest.read_manifest(tmp_path / "out")["files"]
    assert "bpe/train.en" in files and "tok/train.en" not in files


def test_the_same_again_does_nothing(tmp_path, capsys):
    first = publishing.publish(tmp_path / "out", recipe(), build, overwrite=False)
    capsys.readouterr()
    assert publishing.publish(tmp_path / "out", recipe(), never, overwrite=False) == first
    assert "nothing to do" in capsys.readouterr().err


def test_other_settings_or_inputs_are_an_error(tmp_path):
    out = tmp_path / "out"
    publishing.publish(out, recipe(merges=1), build, overwrite=False)
    with pytest.raises(
        PrepError, match=r'"merges": 1.*"merges": 2.*another --out or .*--overwrite'
    ):
        publishing.publish(out, recipe(merges=2), never, overwrite=False)
    other = {**recipe(merges=1), "inputs": {"a.en": "1" * 64}}
    with pytest.raises(PrepError, match="other input files"):
        publishing.publish(out, other, never, overwrite=False)
    publishing.publish(out, recipe(merges=2), build, overwrite=True)
    assert manifest.read_manifest(out)["settings"] == {"merges": 2}
    assert names(tmp_path) == [".out.lock", "out"]


@pytest.mark.parametrize("lost", ["bin/dict.en.txt", "tok/test.en"])
def test_a_lost_file_is_named(tmp_path, lost):
    out = tmp_path / "out"
    publishing.publish(out, recipe(), build, overwrite=False)
    (out / lost).unlink()
    with pytest.raises(PrepError, match=f"lacks {lost}; pass --overwrite"):
        publishing.publish(out, recipe(), never, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_somebody_else_is_never_touched(tmp_path, overwrite):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(PrepError, match="not a prepared corpus; choose another --out"):
        publishing.publish(tmp_path / "out", recipe(), build, overwrite)
    assert names(tmp_path / "out") == ["thesis.txt"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    publishing.publish(tmp_path / "out", recipe(), build, overwrite=False)
    assert "manifest.json" in names(tmp_path / "out")


def test_failure_in_the_middle_leaves_nothing(tmp_path):
    with pytest.raises(PrepError, match="in the middle"):
        publishing.publish(tmp_path / "out", recipe(), fail, overwrite=False)
    assert names(tmp_path) == [".out.lock"]


def test_failure_while_overwriting_keeps_the_old(tmp_path):
    out = tmp_path / "out"
    first = publishing.publish(out, recipe(), build, overwrite=False)
    with pytest.raises(PrepError, match="in the middle"):
        publishing.publish(out, recipe(merges=2), fail, overwrite=True)
    assert publishing.publish(out, recipe(), never, overwrite=False) == first


def test_after_a_kill_the_same_command_starts_again(tmp_path):
    out = tmp_path / "out"
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from prep import publishing, text_files; from pathlib import Path\n"
        "def build(work):\n"
        "    text_files.write_lines(work / 'tok' / 'train.en', ['half'])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "publishing.publish(Path(sys.argv[2]), {}, build, False)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, DATA_PREP, out], check=False)
    assert killed.returncode == -9
    assert len([name for name in names(tmp_path) if name.startswith("out.tmp-")]) == 1
    assert not out.exists()
    like = ["out.tmp-1.txt", "out.tmp-mine"]  # names that look like ours and are not
    for name in like:
        (tmp_path / name).mkdir()
    publishing.publish(out, recipe(), build, overwrite=False)
    assert names(tmp_path) == [".out.lock", "out", *like]


def test_what_a_killed_run_left_beside_a_complete_one_is_cleared(tmp_path):
    out = tmp_path / "out"
    first = publishing.publish(out, recipe(), build, overwrite=False)
    left = [tmp_path / "out.tmp-123", out / "bin.tmp-123", out / "bin.tmp-123.old"]
    for folder in left:
        folder.mkdir()
    with open(tmp_path / ".out.lock", "w") as lock:  # a run that is alive: it may be its own
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert publishing.publish(out, recipe(), never, overwrite=False) == first
        assert all(folder.exists() for folder in left)
    assert publishing.publish(out, recipe(), never, overwrite=False) == first
    assert not any(folder.exists() for folder in left)


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    out = tmp_path / "out"
    first = publishing.publish(out, recipe(), build, overwrite=False)
    os.rename(out, tmp_path / "out.tmp-123.old")
    assert publishing.publish(out, recipe(), never, overwrite=False) == first
    assert names(tmp_path) == [".out.lock", "out"]


def test_a_second_process_waits_and_then_has_nothing_to_do(tmp_path, monkeypatch):
    out, said, results = tmp_path / "out", [], []
    waits = threading.Event()

    def hear(message):
        said.append(message)
        waits.set()

    monkeypatch.setattr(locks, "report", hear)
    monkeypatch.setattr(publishing, "report", said.append)
    second = threading.Thread(
        target=lambda: results.append(publishing.publish(out, recipe(), never, False))
    )
    with open(tmp_path / ".out.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert waits.wait(timeout=30)
        build(out)
        checksum = manifest.write_manifest(out, recipe(), {})
    second.join(timeout=30)
    assert results == [checksum]
    assert "another process is preparing" in said[0] and "nothing to do" in said[1]


def test_run_command_prints_one_line(capsys):
    def full():
        raise OSError(28, "No space left on device", "out/tok/train.en")

    with pytest.raises(SystemExit) as stop:
        run_command(full)
    assert stop.value.code == 1
    assert capsys.readouterr().err == (
        "error: [Errno 28] No space left on device: 'out/tok/train.en'\n"
    )


@pytest.fixture
def usual_signals():
    """As a shell starts a command, whatever the tests themselves were started with."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_run_command_clears_away_when_it_is_stopped(tmp_path, usual_signals, capsys, number):
    def stopped(work):
        build(work)
        signal.raise_signal(number)
        raise AssertionError("went on")

    with pytest.raises(SystemExit) as stop:
        run_command(
            lambda: publishing.publish(tmp_path / "out", recipe(), stopped, overwrite=False)
        )
    assert stop.value.code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL
    assert (
        f"error: stopped by {number.name}; run the same command again to continue"
        in capsys.readouterr().err
    )
    assert names(tmp_path) == [".out.lock"]


def test_a_second_signal_does_not_stop_the_clearing_away(tmp_path, usual_signals):
    def stopped_twice():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            (tmp_path / "cleared").touch()

    with pytest.raises(SystemExit):
        run_command(stopped_twice)
    assert names(tmp_path) == ["cleared"]


def test_a_signal_that_nohup_ignores_stays_ignored(usual_signals):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run_command(lambda: signal.raise_signal(signal.SIGHUP))


def test_too_little_memory_is_one_line(capsys):
    def fill():
        raise MemoryError

    with pytest.raises(SystemExit):
        run_command(fill)
    assert capsys.readouterr().err.startswith("error: memory ran out; pass a smaller")


def test_a_stop_between_the_two_renames_keeps_the_old(tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = publishing.publish(out, recipe(), build, overwrite=False)
    rename, made = os.rename, []

    def stop_at_the_second(source, target):
        made.append(source)
        if len(made) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        publishing.publish(out, recipe(merges=2), build, overwrite=True)
    assert names(tmp_path) == [".out.lock", "out"]
    assert publishing.publish(out, recipe(), never, overwrite=False) == first


# ---- bin/ ---------------------------------------------------------------------------------------


@pytest.fixture
def prepared(tmp_path):
    publishing.publish(tmp_path / "out", recipe(), build, overwrite=False)
    return tmp_path / "out"


def test_binarizing_is_done_once_and_again_when_something_changed(prepared, monkeypatch, capsys):
    publishing.publish_binarized(prepared, recipe(), binarize, overwrite=False)
    capsys.readouterr()
    publishing.publish_binarized(prepared, recipe(), never, overwrite=False)
    assert "nothing to do" in capsys.readouterr().err
    # A file of the same size and other content, as a failing disk leaves it.
    changed = prepared / "bin" / "test.en-de.en.bin"
    changed.write_bytes(b"y" * changed.stat().st_size)
    publishing.publish_binarized(prepared, recipe(), binarize, overwrite=False)
    assert changed.read_text() == "binary\n"
    with monkeypatch.context() as other:
        other.setattr(publishing, "tool_versions", lambda: {"fairseq": "another"})
        publishing.publish_binarized(
            prepared, recipe(), lambda work: binarize(work, "later"), overwrite=False
        )
    assert changed.read_text() == "later\n"
    publishing.publish(prepared, recipe(merges=3), lambda w: build(w, "other\n"), overwrite=True)
    assert names(prepared / "bin") == ["dict.de.txt", "dict.en.txt"]
    publishing.publish_binarized(
        prepared, recipe(), lambda work: binarize(work, "new"), overwrite=False
    )
    assert changed.read_text() == "new\n"
    assert names(prepared) == ["bin", "manifest.json", "tok"]


def test_a_complete_corpus_is_used_where_nothing_can_be_written(prepared, capsys):
    publishing.publish_binarized(prepared, recipe(), binarize, overwrite=False)
    lock = prepared.parent / ".out.lock"
    lock.unlink()
    lock.mkdir()  # cannot be opened, not even by root
    (prepared / "bin.tmp-123").mkdir()
    capsys.readouterr()
    publishing.publish(prepared, recipe(), never, overwrite=False)
    publishing.publish_binarized(prepared, recipe(), never, overwrite=False)
    assert capsys.readouterr().err.count("nothing to do") == 2


def test_binarizing_leaves_the_identity_of_the_data_alone(prepared):
    before = (prepared / "manifest.json").read_bytes()
    publishing.publish_binarized(prepared, recipe(), binarize, overwrite=False)
    assert (prepared / "manifest.json").read_bytes() == before
    publishing.publish(prepared, recipe(), never, overwrite=False)


def test_there_is_nothing_to_binarize_before_prepare(tmp_path):
    with pytest.raises(PrepError, match=r"no prepared text to binarize; run --only prepare"):
        publishing.publish_binarized(tmp_path / "out", recipe(), never, overwrite=False)


@pytest.mark.parametrize("other", [{"corpus": "small"}, {"source": "de", "target": "en"}])
def test_the_text_of_another_corpus_or_direction_is_not_binarized(prepared, other):
    key, value = next(iter(other.items()))
    with pytest.raises(PrepError, match=rf'prepared with {key} ".*", not "{value}".*another --out'):
        publishing.publish_binarized(prepared, {**recipe(), **other}, never, overwrite=True)
    assert names(prepared / "bin") == ["dict.de.txt", "dict.en.txt"]


def test_a_failure_while_binarizing_keeps_the_text(prepared):
    def full(work):
        binarize(work)
        raise OSError(28, "No space left on device")

    with pytest.raises(PrepError, match=r"cannot make .*bin: .*No space left"):
        publishing.publish_binarized(prepared, recipe(), full, overwrite=False)
    assert names(prepared) == ["bin", "manifest.json", "tok"]
    assert names(prepared / "bin") == ["dict.de.txt", "dict.en.txt"]


def test_a_kill_while_bin_is_replaced_loses_nothing(prepared):
    os.rename(prepared / "bin", prepared / "bin.tmp-123.old")
    (prepared / "bin.tmp-123").mkdir()
    publishing.publish(prepared, recipe(), never, overwrite=False)
    assert names(prepared) == ["bin", "manifest.json", "tok"]
