"""wmt14.py on a tiny stand-in in the original layout, and on the real newstest2014."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import wmt14
from norm_plugin.commands.command_line import CommandError
from prep.files import SPLITS, lines_of, read_raw
from prep.pairs import read_side
from prep.text import apply_rules

# Of what Moses' tokenizer.perl -a makes of the real newstest2014.
DIGESTS = {
    "en": "6da6b7a12160ba7eddb6be87054fd6fcda983960074374d860e937a4aba176fb",
    "de": "26037be77fd7c0177bbe1c1a3d289d4c61d18ad56217dc30c8afd683d4970e0f",
}


def stand_in(split, name, language):
    if split == "test":
        return [
            "<doc>",
            f'<seg id="1">It’s “A” – B-{language}.</seg>',
            '<seg id="2"> Zwei und drei. </seg>',
            "</doc>",
        ]
    # Lines that are no pair at all, one too unequal, and some that stay.
    unequal = "a b c d e f g h" if language == "en" else "a"
    stem = re.sub("[^a-z].*", "", name.rpartition("/")[2])
    pairs = [f"The “well-known” {stem}\u200b No. {n}—{n}." for n in range(20)]
    return ["", unequal, *pairs]


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    contents = {}
    for split in SPLITS:
        for language in wmt14.LANGUAGES:
            for name, archive in wmt14.files(split, language):
                lines = stand_in(split, name, language)
                if split == "valid":
                    lines = lines[2:]
                contents.setdefault(archive, {})[name] = "".join(f"{x}\n" for x in lines).encode()
    for archive, files in contents.items():
        with tarfile.open(folder / archive, "w:gz") as stream:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                stream.addfile(member, io.BytesIO(content))

    return folder


@pytest.fixture
def run(prepare):
    corpus = replace(wmt14.CORPUS, lines={"test": 2})
    return lambda raw, out: prepare(corpus, raw, out, "--merges", 40)


def test_wmt14(raw, tmp_path, run):
    out = tmp_path / "out"
    manifest = run(raw, out)
    assert manifest["scoring"] == ["compound_split"]
    counts = manifest["counts"]
    assert counts["raw"]["train.en"]["lines"] == 66
    # Of three times 22, the empty pairs go first and the unequal ones after BPE.
    assert [counts[step]["train.de"]["lines"] for step in ("tok", "bpe")] == [63, 60]
    assert [counts["bpe"][f"{s}.en"]["lines"] for s in ("valid", "test")] == [20, 2]
    tokens = list(lines_of(out / "tok" / "train.en"))
    assert tokens[1] == "The &quot; well @-@ known &quot; europarl No. 0 - 0 ."
    assert [line.split()[6] for line in tokens[1::21]] == ["europarl", "commoncrawl", "news"]
    assert next(lines_of(out / "tok" / "test.en")) == "It &apos;s “ A ” – B @-@ en ."
    assert list(lines_of(out / "raw" / "test.de")) == [
        "It’s “A” – B-de.",
        "Zwei und drei.",
    ]


def test_an_archive_of_another_name_or_content(raw, tmp_path, run):
    (raw / "dev.tgz").write_bytes((raw / "test-full.tgz").read_bytes())
    with pytest.raises(CommandError, match=r"dev\.tgz lacks dev/newstest2013\.de, dev/newstest2"):
        run(raw, tmp_path / "out")
    (raw / "dev.tgz").unlink()
    with pytest.raises(
        CommandError, match=r"raw lacks newstest2013\.en, newstest2013\.de; dev\.tgz would"
    ):
        run(raw, tmp_path / "out")


def test_the_benchmark_runs_and_projects(raw):
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "preparation.py"
    command = [sys.executable, script, "--raw", raw, "--pairs", "30", "60", "--merges", "20"]
    command += ["--workers", "1", "--no-csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("30 pairs on 1 cores, pairs/s: tokenize ")
    assert lines[4].startswith("60 pairs on 1 cores") and "on 8 cores: about" in lines[7]


def test_real_newstest2014(tmp_path):
    root = os.environ.get("NORM_DATA_DIR")
    if not root or not (Path(root) / "wmt14").is_dir():
        pytest.skip("NORM_DATA_DIR names no folder with wmt14/ in it")
    for language, digest in DIGESTS.items():
        files = wmt14.files("test", language)
        paths = read_raw(Path(root) / "wmt14", files, tmp_path)
        lines = list(read_side(wmt14.CORPUS, paths, "test", language))
        assert len(lines) == 3003
        text = "".join(f"{x}\n" for x in apply_rules(lines, language, wmt14.TEST_RULES))
        assert hashlib.sha256(text.encode()).hexdigest() == digest
