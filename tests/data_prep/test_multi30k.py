"""multi30k.py on a tiny stand-in, its errors, and the real corpus if it is there."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import multi30k
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.results import read_results
from prep import pairs, stages
from prep.files import file_digest

ROOT = Path(__file__).resolve().parents[2]
LINES = {"train": 40, "valid": 8, "test": 8}


def caption(split, language, number):
    if language == "en":
        return f"A man's {split} No. {number} waits – near the U.S.A."
    return f"Ein Mann {split} Nr. {number} wartet „hier“ im Schnee."


@pytest.fixture
def raw(tmp_path):
    """A folder in the layout of the real one."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, stem in multi30k.STEMS.items():
        for language in multi30k.CORPUS.languages:
            text = "".join(f"{caption(split, language, n)}\n" for n in range(LINES[split]))
            (folder / f"{stem}.{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


TINY = replace(multi30k.CORPUS, lines=LINES)


def run(corpus, *argv):
    corpus.run(list(map(str, argv)))


def prepare_all(raw, out, *more):
    run(TINY, "--raw", raw, "--out", out, "--merges", 50, "--workers", 1, *more)


TEXT_ONLY = ("--only", "prepare")


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def test_from_raw_to_bin(raw, tmp_path):
    out = tmp_path / "out"
    prepare_all(raw, out)
    assert listing(out) == ["bin", "bpe", "manifest.json", "raw", "tok"]
    assert listing(out / "raw") == ["test.de", "test.en", "valid.de", "valid.en"]
    assert (out / "raw" / "test.de").read_text().splitlines()[7] == caption("test", "de", 7)
    tokenized = (out / "tok" / "valid.en").read_text().splitlines()
    assert tokenized[3] == "a man &apos;s valid no. 3 waits - near the u.s.a ."
    for name in ("train.en", "test.de"):
        segmented = (out / "bpe" / name).read_text()
        assert "@@ " in segmented
        assert segmented.replace("@@ ", "") == (out / "tok" / name).read_text()
    assert len((out / "bpe" / "codes").read_text().splitlines()) == 51
    # Plain files and more processes give the same data.
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in raw.iterdir():
        (plain / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    prepare_all(plain, tmp_path / "plain-out", "--workers", "2", *TEXT_ONLY)
    manifests = [
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("out", "plain-out")
    ]
    assert manifests[0]["checksum"] == manifests[1]["checksum"]
    assert manifests[0]["files"] == manifests[1]["files"]
    assert len(listing(out / "bin")) == 15  # dictionaries, two files a text, the record


def test_the_same_again_does_nothing_and_other_settings_are_refused(raw, tmp_path, capsys):
    prepare_all(raw, tmp_path / "out", *TEXT_ONLY)
    capsys.readouterr()
    prepare_all(raw, tmp_path / "out", *TEXT_ONLY)
    assert "nothing to do" in capsys.readouterr().err
    with pytest.raises(CommandError, match=r'"merges": 50.*"merges": 51'):
        prepare_all(raw, tmp_path / "out", "--merges", "51")


def test_refusals_name_the_file_and_leave_nothing(raw, tmp_path):
    out = tmp_path / "out"
    whole = (raw / "val.de.gz").read_bytes()

    (raw / "val.de.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CommandError, match=r"val\.de\.gz is truncated or damaged after \d+ lines"):
        prepare_all(raw, out)
    (raw / "val.de.gz").write_bytes(gzip.compress(b"eins\nzwei\n"))
    with pytest.raises(CommandError, match=r"valid has 8 lines in en and 2 in de; line N"):
        prepare_all(raw, out)
    (raw / "val.de.gz").unlink()
    with pytest.raises(CommandError, match=r"raw lacks val\.de"):
        prepare_all(raw, out)
    assert listing(tmp_path) == [".out.lock", "raw"]


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (pairs, "learn_subwords"),
        (pairs, "write_pieces"),
        (pairs, "make_dictionary"),
    ],
)
def test_a_failing_step_leaves_nothing(raw, tmp_path, monkeypatch, module, step):
    def fail(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr(module, step, fail)
    with pytest.raises(CommandError, match=r"cannot make .*out: the disk is full"):
        prepare_all(raw, tmp_path / "out")
    assert listing(tmp_path) == [".out.lock", "raw"]


def test_without_raw_it_downloads_beside_out(raw, tmp_path, monkeypatch, capsys):
    def download(sources, folder):
        assert sources == multi30k.CORPUS.sources
        shutil.copytree(raw, folder, dirs_exist_ok=True)

    monkeypatch.setattr(stages, "download_all", download)
    command = [TINY, "--out", tmp_path / "out", "--merges", 50, "--workers", 1]
    with pytest.raises(
        CommandError, match=r"out\.download lacks train\.en\.gz.*--only fetch first"
    ):
        run(*command, *TEXT_ONLY)
    run(*command, "--only", "fetch")
    assert listing(tmp_path) == [".out.lock", "out.download", "raw"]
    command += TEXT_ONLY
    run(*command)
    assert listing(tmp_path) == [".out.lock", "out", "out.download", "raw"]
    # The published checksums say that OUT is right, without the files.
    shutil.rmtree(tmp_path / "out.download")
    run(*command)
    assert "nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["--raw", "nowhere"],
            1,
            ", val.en, val.de, test_2016_flickr.en, test_2016_flickr.de\n",
        ),
        (["--merges", "0"], 2, "argument --merges: '0' is not a whole number from 1\n"),
        (["--src", "de"], 2, "--src and --tgt are both de; pass two languages\n"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, arguments, status, message):
    command = [sys.executable, multi30k.__file__, "--out", "out", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr.endswith(message) and "Traceback" not in done.stderr
    assert listing(tmp_path) == []


# ---- the real corpus --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    root = os.environ.get("NORM_DATA_DIR")
    if not root or not (Path(root) / "multi30k").is_dir():
        pytest.skip("NORM_DATA_DIR names no folder with multi30k/ in it")
    return Path(root) / "multi30k"


def test_real_files_are_the_published_ones(real):
    assert {p.name: file_digest(p) for p in real.glob("*.gz")} == multi30k.DIGESTS


def test_real_corpus(real, tmp_path):
    run(multi30k.CORPUS, "--raw", real, "--out", tmp_path / "out", "--merges", 2000, *TEXT_ONLY)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    lines = {name: count["lines"] for name, count in manifest["counts"]["tok"].items()}
    assert lines == {
        **{"train.en": 29000, "train.de": 29000},
        **{"valid.en": 1014, "valid.de": 1014, "test.en": 1000, "test.de": 1000},
    }
    # A change here changes every result on this corpus: make it knowingly.
    tokens = {side: manifest["counts"]["tok"][f"train.{side}"]["tokens"] for side in ("en", "de")}
    assert tokens == {"en": 377535, "de": 360784}
    checksums = read_results(ROOT / "results/multi30k_cpu")["data.checksum"]
    assert {manifest["checksum"]} == set(checksums)
    assert (tmp_path / "out" / "tok" / "test.de").read_text().splitlines()[1] == (
        "ein boston terrier läuft über saftig-grünes gras vor einem weißen zaun ."
    )
