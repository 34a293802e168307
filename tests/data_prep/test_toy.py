"""The toy corpus: pinned bytes, their shape, and the command."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

import toy

SIZES = {"train": 8000, "valid": 500, "test": 500}
SHA256 = "e00990010afbcf1df86c738d82dae3a58a7c9d371c9d7f7839a38aa08b6a5641"


@pytest.fixture(scope="module")
def files():
    return toy.generate(1, SIZES)


def pairs(files, split):
    return list(zip(files[f"{split}.en"], files[f"{split}.xx"]))


def test_bytes_are_pinned(files):
    # A change here changes every result on the toy corpus: make it knowingly.
    text = "".join(f"{en}\t{xx}\n" for split in SIZES for en, xx in pairs(files, split))
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
    assert toy.generate(2, {"train": 1})["train.en"] != files["train.en"][:1]


def test_sacrebleu_leaves_the_words_alone(files):
    sacrebleu = pytest.importorskip("sacrebleu")
    raw = [toy.detokenize(line) for line in files["test.xx"]]
    assert raw[0].endswith("r.") and " ." not in raw[0]
    assert sacrebleu.corpus_bleu(raw, [files["test.xx"]], force=True).score == pytest.approx(100)


def test_the_command(tmp_path, capsys):
    out = tmp_path / "toy"
    command = ["--out", str(out), "--train", "300", "--valid", "20", "--test", "20"]
    command += ["--workers", "1"]
    toy.main(command)
    assert capsys.readouterr().err.splitlines()[-1] == f"done: binarized in {out / 'bin'}"
    assert sorted(path.name for path in out.iterdir()) == ["bin", "manifest.json", "raw", "tok"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["source"], manifest["target"]) == ("en", "xx")
    assert manifest["counts"]["tok"]["train.xx"]["lines"] == 300
    assert manifest["counts"]["raw"]["test.xx"]["lines"] == 20
    again = [sys.executable, toy.__file__, *command, "--seed", "2"]
    refused = subprocess.run(again, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1
    assert json.loads((out / "manifest.json").read_text()) == manifest
    english, velan = (
        (out / "bin" / f"dict.{language}.txt").read_bytes() for language in ("en", "xx")
    )
    assert english == velan and b"kelodoi " in english and b"dogs " in english
