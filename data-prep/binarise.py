"""What fairseq-preprocess makes, in two halves: the dictionaries, then the binary text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from steps import SPLITS, PrepError, report

PADDING_FACTOR = 8  # fairseq-preprocess rounds dictionaries up to a multiple of it


def make_dictionaries(
    text: Path, destination: Path, source: str, target: str, joint: bool, workers: int
) -> None:
    """Write `destination`/dict.* from `text`/train.*; `joint`: one dictionary for both sides."""
    from fairseq.data import Dictionary  # seconds, which --help need not wait for
    from fairseq.tokenizer import tokenize_line

    destination.mkdir(parents=True, exist_ok=True)
    groups = [[source, target]] if joint else [[source], [target]]
    for languages in groups:
        words = Dictionary()
        for language in languages:
            path = str(text / f"train.{language}")
            Dictionary.add_file_to_dictionary(path, words, tokenize_line, workers)
        words.finalize(padding_factor=PADDING_FACTOR)
        for language in languages:
            words.save(str(destination / f"dict.{language}.txt"))
        types = sum(count > 0 for count in words.count[words.nspecial :])
        report(f"dictionary of {' and '.join(languages)}: {types:,} types")


def binarise(
    text: Path,
    dictionaries: Path,
    destination: Path,
    source: str,
    target: str,
    joint: bool,
    workers: int,
) -> None:
    """Write the binary form of `text`/{train,valid,test}.* by the given dictionaries."""
    command = [sys.executable, "-m", "fairseq_cli.preprocess"]
    command += [f"--{split}pref={text / split}" for split in SPLITS]
    command.append(f"--srcdict={dictionaries / f'dict.{source}.txt'}")
    if joint:
        command.append("--joined-dictionary")
    else:
        command.append(f"--tgtdict={dictionaries / f'dict.{target}.txt'}")
    command += ["--source-lang", source, "--target-lang", target]
    command += ["--destdir", str(destination), "--workers", str(workers)]
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if finished.returncode != 0:
        lines = finished.stdout.strip().splitlines() or ["it printed nothing"]
        raise PrepError(f"fairseq-preprocess ended with {finished.returncode}: {lines[-1]}")
    # The log holds nothing but paths in a folder that is about to be renamed.
    (destination / "preprocess.log").unlink()
    report(f"binarise: {', '.join(SPLITS)}")
