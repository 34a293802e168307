"""Sentence pairs of one's own are six files, without a program."""

from __future__ import annotations

import json

import pytest

import own_pairs
from norm_plugin.io.command_line import CommandError
from prep.files import SPLITS, write_lines


def test_six_files_are_a_corpus(tmp_path):
    raw = tmp_path / "reviews"
    for split in SPLITS:
        write_lines(raw / f"{split}.de", ["Ein guter Film.", "Nicht schlecht."])
        write_lines(raw / f"{split}.en", ["A good film.", "It isn't bad."])
    flags = ["--merges", "10", "--workers", "1"]
    own_pairs.main(["--raw", str(raw), "--out", str(tmp_path / "out"), *flags])
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["corpus"], manifest["source"], manifest["target"]) == ("reviews", "de", "en")
    assert set(manifest["inputs"]) == {f"{split}.{x}" for split in SPLITS for x in ("de", "en")}
    assert (tmp_path / "out/tok/test.en").read_text() == "A good film .\nIt isn &apos;t bad .\n"
    (raw / "train.fr").touch()
    with pytest.raises(CommandError, match="two files .* it has train.de, train.en, train.fr"):
        own_pairs.main(["--raw", str(raw), "--out", str(tmp_path / "other"), *flags])


def test_without_a_folder_the_error_asks_for_one(tmp_path):
    with pytest.raises(CommandError, match="pass the folder of its raw files as --raw DIR"):
        own_pairs.main(["--out", str(tmp_path / "out")])
