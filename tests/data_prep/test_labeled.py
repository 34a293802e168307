"""Corpora of labeled sentences: RT and SST5 on tiny stand-ins, their errors, and the real ones."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import rt_polarity
import sst5
from norm_plugin.commands.command_line import CommandError

SIZES = {"train": 14, "valid": 3, "test": 3}
RT = replace(rt_polarity.CORPUS, raw=replace(rt_polarity.CORPUS.raw, lines=10, sizes=SIZES))
LINES = {"train": 10, "valid": 5, "test": 5}
SST5 = replace(sst5.CORPUS, raw=replace(sst5.CORPUS.raw, lines=LINES))


@pytest.fixture
def rt(tmp_path):
    folder = tmp_path / "rt"
    folder.mkdir()
    for name in ("neg", "pos"):
        text = "".join(f"a {name} caf\xe9 – hmm… , Film {number} \n" for number in range(10))
        (folder / f"rt-polarity.{name}").write_bytes(text.encode("cp1252"))
    return folder


@pytest.fixture
def sst(tmp_path):
    folder = tmp_path / "sst"
    folder.mkdir()
    for split, count in LINES.items():
        text = "".join(f"{number % 5} a Film of {number}\n" for number in range(count))
        (folder / sst5.NAMES[split]).write_text(text)
    return folder


def lines(out, name):
    return (out / "tok" / name).read_text().splitlines()


def pairs(out):
    """Every sentence with its label, by split."""
    return {
        split: list(zip(lines(out, f"{split}.input0"), lines(out, f"{split}.label")))
        for split in SIZES
    }


def test_rt_is_split_by_its_seed(rt, tmp_path, prepare):
    manifest = prepare(RT, rt, tmp_path / "one", "--split-seed", 7)
    found = pairs(tmp_path / "one")
    assert {split: len(part) for split, part in found.items()} == SIZES
    assert len({pair for part in found.values() for pair in part}) == 20  # none is in two splits
    for sentence, label in found["train"]:
        assert ("neg" in sentence) == (label == "0")
        assert "café – hmm… , film" in sentence
    assert manifest["settings"]["split_seed"] == 7
    again = prepare(RT, rt, tmp_path / "again", "--split-seed", 7)
    other = prepare(RT, rt, tmp_path / "other", "--split-seed", 8)
    assert again["checksum"] == manifest["checksum"] != other["checksum"]
    assert pairs(tmp_path / "other") != found


def test_a_negative_seed_is_refused(capsys):
    with pytest.raises(SystemExit):
        RT.run(["--out", "out", "--split-seed", "-7"])
    assert "argument --split-seed: '-7' is not a whole number from 0" in capsys.readouterr().err


@pytest.fixture
def archived(rt, tmp_path):
    """The folder of an archive with the files of `rt`."""
    archive = tmp_path / "archived" / rt_polarity.ARCHIVE
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as packed:
        for member in rt_polarity.CORPUS.raw.members.values():
            content = (rt / Path(member).name).read_bytes()
            header = tarfile.TarInfo(member)
            header.size = len(content)
            packed.addfile(header, io.BytesIO(content))
    return archive.parent


def test_a_copy_in_utf8_and_the_archive_give_the_same_data(rt, archived, tmp_path, prepare):
    checksum = prepare(RT, rt, tmp_path / "plain")["checksum"]
    for path in rt.iterdir():
        path.write_text(path.read_bytes().decode("cp1252"), encoding="utf-8")
    assert prepare(RT, rt, tmp_path / "utf8")["checksum"] == checksum
    assert prepare(RT, archived, tmp_path / "tar")["checksum"] == checksum


def test_what_is_prepared_needs_its_raw_files_no_more(rt, archived, tmp_path, capsys, prepare):
    def again(out):
        RT.run(["--out", str(out), "--only", "prepare"])

    prepare(RT, archived, tmp_path / "tar")
    capsys.readouterr()
    again(tmp_path / "tar")
    assert "nothing to do" in capsys.readouterr().err
    prepare(RT, rt, tmp_path / "plain")  # not from the file that would be downloaded
    with pytest.raises(
        CommandError, match=r"plain\.download lacks rt-pol.* run --only fetch first"
    ):
        again(tmp_path / "plain")


def test_an_archive_of_another_corpus(rt, tmp_path, prepare):
    with tarfile.open(rt / rt_polarity.ARCHIVE, "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("aclImdb/README"), io.BytesIO())
    with pytest.raises(
        CommandError, match=r"lacks rt-polaritydata/rt-polarity\.neg, .* not the arch"
    ):
        prepare(RT, rt, tmp_path / "out")
    with pytest.raises(
        CommandError, match=r"lacks rt-polarity\.neg, rt-polarity\.pos; rt-polaritydata\.tar\.gz"
    ):
        prepare(RT, tmp_path, tmp_path / "out")


def test_files_of_another_size_and_empty_sentences(rt, tmp_path, prepare):
    negative = rt / "rt-polarity.neg"
    whole = negative.read_bytes()
    negative.write_bytes(whole + b"one more\n")
    with pytest.raises(
        CommandError, match=r"rt-polarity\.neg has 11 lines, and the published .* 10"
    ):
        prepare(RT, rt, tmp_path / "out")
    negative.write_bytes(whole.replace("a neg café – hmm… , Film 3 ".encode("cp1252"), b" "))
    with pytest.raises(CommandError, match=r"rt-polarity\.neg, line 4, has an empty sentence"):
        prepare(RT, rt, tmp_path / "out")
    negative.write_bytes(whole.replace(b"Film 3", b"Film \x81"))  # stands for nothing
    with pytest.raises(CommandError, match=r"neither in UTF-8 nor in cp1252"):
        prepare(RT, rt, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sst5_has_its_own_split(sst, tmp_path, prepare):
    manifest = prepare(SST5, sst, tmp_path / "out")
    assert pairs(tmp_path / "out")["test"] == [(f"a film of {n}", str(n)) for n in range(5)]
    settings = {"labels": list("01234"), "lowercase": True, "least_count": 2}
    assert manifest["settings"] == settings
    # A word that occurs once is unknown.
    words = (tmp_path / "out/bin/input0/dict.txt").read_text().splitlines()
    assert words[:3] == ["a 10", "film 10", "of 10"]
    assert (tmp_path / "out/bin/label/dict.txt").read_text() == "0 1\n1 1\n2 1\n3 1\n4 1\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7 a film", r"stsa\.fine\.dev, line 5, has the label '7'; the labels are 0, 1, 2, 3, 4"),
        ("a film", r"stsa\.fine\.dev, line 5, has the label 'a'"),
        ("4  ", r"stsa\.fine\.dev, line 5, has an empty sentence"),
        ("4", r"stsa\.fine\.dev, line 5, has an empty sentence"),
        ("4 a film\n4 a film", r"stsa\.fine\.dev has 6 lines, and the published file has 5"),
    ],
)
def test_what_sst5_refuses(sst, tmp_path, line, message, prepare):
    path = sst / "stsa.fine.dev"
    path.write_text(path.read_text().replace("4 a Film of 4", line))
    with pytest.raises(CommandError, match=message):
        prepare(SST5, sst, tmp_path / "out")


@pytest.mark.parametrize(("module", "name"), [(rt_polarity, "rt-polarity"), (sst5, "sst5")])
def test_the_real_corpus(module, name, tmp_path, prepare):
    folder = Path(os.environ.get("NORM_DATA_DIR", ""), name)
    if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip(f"NORM_DATA_DIR names no folder with {name}/ in it")
    manifest = prepare(module.CORPUS, folder, tmp_path / "out")
    counts = {split: len(lines(tmp_path / "out", f"{split}.label")) for split in SIZES}
    expected = {
        "rt-polarity": {"train": 8608, "valid": 964, "test": 1089},
        "sst5": {"train": 8544, "valid": 1101, "test": 2210},
    }
    assert counts == expected[name]
    assert manifest["counts"]["tok"]["train.input0"]["lines"] == counts["train"]
    labels = [label for part in pairs(tmp_path / "out").values() for _, label in part]
    assert set(labels) == set(module.CORPUS.labels)
