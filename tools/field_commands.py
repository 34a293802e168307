#!/usr/bin/env python3
"""Run the field's published commands with our architectures, on a corpus of a few hundred lines.

    python tools/field_commands.py
    python tools/field_commands.py --only translation --stock

Each row of field_commands.yaml is a published command line of fairseq-train, with norm_ in front of
its architecture, and the commands after the training. Flags that only set the size are overridden:
a tiny model makes a few updates on a CPU, where --memory-efficient-fp16 replaces --fp16, which
needs a GPU. --stock also runs each row with fairseq's own architecture. Prints what passed and what
failed; the exit status is 1 if a row fails that does not fail in fairseq too.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import yaml

from norm_lab.report.text import markdown
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.io.files import read_text, write_text

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".yaml")
PLUGIN = ROOT / "norm_plugin"
Start = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs ``python -m MODULE ARGV``, or the file MODULE; ``stdin`` is its input."""
CPU = ("--cpu", "--num-workers", "0")
HALF = "--memory-efficient-fp16"


def _size(*sides: str) -> list[str]:
    each = {"layers": 2, "embed-dim": 16, "ffn-embed-dim": 32, "attention-heads": 2}
    return [word for side in sides for k, v in each.items() for word in (f"--{side}-{k}", str(v))]


ANY_NUMBER = ("--required-batch-size-multiple", "1")
SMALL = {
    "pairs": [*_size("encoder", "decoder"), "--max-tokens", "512"],
    "aligned": [*_size("encoder", "decoder"), "--max-tokens", "512"],
    "text": ["--tokens-per-sample", "64", "--max-tokens", "512", *ANY_NUMBER],
    "labels": [*_size("encoder"), "--max-positions", "64", "--max-tokens", "512"],
    "choices": [*_size("encoder"), "--max-positions", "64"],
}
"""The flags that make a model and its batches small, by the kind of corpus."""
UPDATES = 4
BRIEF = (
    "--update-freq",
    "1",
    "--warmup-updates",
    "2",
    "--max-update",
    str(UPDATES),
    "--max-epoch",
    "9",
)


@dataclass(frozen=True)
class Row:
    """A published command; field_commands.yaml explains the fields."""

    name: str
    source: str
    data: str
    train: str
    then: list[str | list[str]]
    norm: str = ""
    arch: str = ""
    small: str = ""
    example: str = ""
    stock: str = ""
    short: bool = False

    def followed_by(self) -> list[tuple[str, list[str]]]:
        """Return the commands that follow the training, each with its flags."""
        return [(step, []) if isinstance(step, str) else (step[0], step[1:]) for step in self.then]

    def flags(self, stock: bool) -> list[str]:
        """Return the flags of fairseq-train, without the corpus and the folder."""
        words = [HALF if word == "--fp16" else word for word in shlex.split(self.train)]
        place = next(i for i, word in enumerate(words) if word in ("--arch", "-a")) + 1
        arch = words[place]
        if not stock:
            words[place : place + 1] = [self.arch or f"norm_{arch}", *shlex.split(self.norm)]
        sides = []
        if self.data == "text":
            sides = _size("decoder" if "language_modeling" in words else "encoder")
        return [*words, *SMALL[self.data], *sides, *BRIEF, *shlex.split(self.small), *CPU]


def read_rows() -> list[Row]:
    """Return the rows of field_commands.yaml, in its order."""
    return [Row(name, **values) for name, values in yaml.safe_load(read_text(TABLE)).items()]


def table() -> str:
    """Return Markdown: the rows, for the documentation."""
    rows = [
        {
            "command": row.name,
            "source": row.source,
            "flags of ours": f"`{row.norm}`",
            "followed by": ", ".join(dict.fromkeys(step for step, _ in row.followed_by())),
            "fails in fairseq too": row.stock or "no",
        }
        for row in read_rows()
    ]
    return markdown(pd.DataFrame(rows))


class RowError(Exception):
    """A command of a row has failed; the message says which, and ends with its last lines."""


@dataclass
class Corpora:
    """The corpora of all kinds, made from the toy corpus when first needed.

    Attributes:
        folder: an empty folder.
        start: runs a command.
    """

    folder: Path
    start: Start
    made: dict[str, Path] = field(default_factory=dict)

    def get(self, kind: str) -> Path:
        """Return the binarized corpus of a kind."""
        if kind not in self.made:
            self.made[kind] = getattr(self, f"_{kind}")()
        return self.made[kind]

    def _run(self, module: str | Path, *argv: object) -> None:
        _checked(self.start(module, *argv))

    def _pairs(self) -> Path:
        out = self.folder / "toy"
        sizes = ("--train", 200, "--valid", 16, "--test", 16, "--workers", 1)
        self._run(ROOT / "data-prep" / "toy.py", "--out", out, *sizes)
        return out / "bin"

    def _text_of(self, split: str) -> Path:
        self.get("pairs")
        return self.folder / "toy" / "tok" / f"{split}.en"

    def _binarize(self, out: Path, train: Path, valid: Path, *flags: object) -> None:
        files = ("--trainpref", train, "--validpref", valid, "--testpref", valid)
        self._run("fairseq_cli.preprocess", *files, "--destdir", out, "--workers", 1, *flags)

    def _dictionary(self) -> tuple[str, Path]:
        return "--srcdict", self.get("pairs") / "dict.en.txt"

    def _aligned(self) -> Path:
        self.get("pairs")
        out, tok = self.folder / "aligned", self.folder / "toy" / "tok"
        for split in ("train", "valid"):
            sides = (read_text(tok / f"{split}.{side}").splitlines() for side in ("en", "xx"))
            shorter = [min(map(len, map(str.split, pair))) for pair in zip(*sides, strict=True)]
            lines = [" ".join(f"{word}-{word}" for word in range(length)) for length in shorter]
            write_text(tok / f"{split}.align", "\n".join(lines) + "\n")
        pair = ("--source-lang", "en", "--target-lang", "xx", "--joined-dictionary")
        self._binarize(out, tok / "train", tok / "valid", *pair, "--align-suffix", "align")
        return out

    def _text(self) -> Path:
        out = self.folder / "text"
        splits = (self._text_of("train"), self._text_of("valid"))
        self._binarize(out, *splits, "--only-source", *self._dictionary())
        return out

    def _labels(self) -> Path:
        return self._labeled("labels", ["input0"], [str(label) for label in range(2)])

    def _choices(self) -> Path:
        inputs = [f"input{number}" for number in range(5)]
        return self._labeled("choices", inputs, [str(label) for label in range(4)])

    def _labeled(self, kind: str, inputs: Sequence[str], labels: Sequence[str]) -> Path:
        out, raw = self.folder / kind, self.folder / f"{kind}.raw"
        raw.mkdir()
        for split in ("train", "valid"):
            count = len(read_text(self._text_of(split)).splitlines())
            answers = [labels[number % len(labels)] for number in range(count)]
            write_text(raw / split, "\n".join(answers) + "\n")
        for name in inputs:
            splits = (self._text_of("train"), self._text_of("valid"))
            self._binarize(out / name, *splits, "--only-source", *self._dictionary())
        if kind == "labels":
            self._binarize(out / "label", raw / "train", raw / "valid", "--only-source")
        else:
            (out / "label").mkdir()
            for split in ("train", "valid"):
                write_text(out / "label" / f"{split}.label", read_text(raw / split))
        return out


def _checked(result: subprocess.CompletedProcess[str]) -> str:
    """Return what a command has printed; raise :class:`RowError` if it failed."""
    if result.returncode:
        lines = (result.stdout + result.stderr).strip().splitlines()
        raise RowError(f"{shlex.join(map(str, result.args))[-200:]}: " + " / ".join(lines[-3:]))
    return result.stdout


def run_row(row: Row, corpora: Corpora, folder: Path, start: Start, stock: bool = False) -> None:
    """Run the training of a row and the commands after it; raise :class:`RowError` on failure."""
    data = corpora.get(row.data)
    user_dir = _user_dir(row, folder, stock)
    ours = ("--user-dir", user_dir) if user_dir else ()
    train = (data, *ours, "--save-dir", folder, *row.flags(stock))
    _checked(start("fairseq_cli.train", *train))
    last = path = folder / "checkpoint_last.pt"
    for step, flags in row.followed_by():
        given = (data, *ours, "--path", path, *CPU)
        match step:
            case "resume":
                longer = ("--max-update", UPDATES + 2, "--restore-file", "checkpoint_last.pt")
                _checked(start("fairseq_cli.train", *train, *longer))
            case "average":
                path = folder / "averaged.pt"
                own = ("--user-dir", user_dir) if user_dir and user_dir != PLUGIN else ()
                argv = ("average", "--inputs", last, "--output", path, *own)
                _checked(start("norm_plugin", *argv))
            case "validate":
                task = [] if flags else _task_flags(row)
                _checked(start("fairseq_cli.validate", *given, *task, *flags))
            case "eval-lm":
                sizes = ("--tokens-per-sample", 64, "--max-tokens", 512, *ANY_NUMBER)
                _checked(start("fairseq_cli.eval_lm", *given, *sizes, *flags))
            case "generate":
                small = ("--beam", 2, "--max-len-b", 8, "--max-tokens", 2048)
                _checked(start("fairseq_cli.generate", *given, *small, *flags))
            case "interactive":
                line = read_text(corpora.folder / "toy" / "tok" / "test.en").splitlines()[0]
                word = read_text(data / "dict.xx.txt").split()[0]
                argv = ("--max-len-b", 8, *flags)
                _checked(start("fairseq_cli.interactive", *given, *argv, stdin=f"{line}\t{word}\n"))
            case "hub":
                script = folder / "hub.py"
                plugin = "" if stock else "import norm_plugin.models\n"
                write_text(script, plugin + HUB.format(path=str(path), data=str(data)))
                _checked(start(script))
            case _:
                raise CommandError(f"{row.name}: the step {step} is unknown; see run_row")


HUB = """
from pathlib import Path
from fairseq import hub_utils
path = Path({path!r})
loaded = hub_utils.from_pretrained(str(path.parent), path.name, {data!r})
assert len(loaded["models"]) == 1
"""
"""``from_pretrained`` for any model of a checkpoint."""


def _task_flags(row: Row) -> list[str]:
    """Return the task flags of fairseq-validate, which reads the others from the checkpoint."""
    words = shlex.split(row.train)
    given = {"--task": "translation", "--max-tokens": "512", **dict([ANY_NUMBER])}
    for flag in ("--task", "--criterion"):
        if flag in words:
            given[flag] = words[words.index(flag) + 1]
    return [word for pair in given.items() for word in pair]


def _user_dir(row: Row, folder: Path, stock: bool) -> Path | None:
    """Return the ``--user-dir``: ours, one that imports the example's code too, or none."""
    if not row.example:
        return None if stock else PLUGIN
    package, _, module = row.example.rpartition(".")
    name = f"example_{'stock' if stock else 'ours'}_{module}"
    lines = [f"from fairseq.examples.{package} import {module}"]
    lines += [] if stock else ["import norm_plugin.models"]
    (folder / name).mkdir(parents=True)
    write_text(folder / name / "__init__.py", "\n".join(lines) + "\n")
    return folder / name


def run_rows(rows: Iterable[Row], start: Start, stock: bool) -> bool:
    """Run rows in a temporary folder, and print the outcome of each; return whether all is well."""
    well = True
    with tempfile.TemporaryDirectory() as work:
        corpora = Corpora(Path(work) / "corpora", start)
        corpora.folder.mkdir()
        for number, row in enumerate(rows):
            outcomes = []
            for of_stock in [False, True] if stock else [False]:
                began = time.monotonic()
                try:
                    run_row(row, corpora, Path(work) / f"{number}-{of_stock}", start, of_stock)
                    outcome = "passed"
                except RowError as error:
                    outcome = f"FAILED: {error}"
                outcomes.append(outcome)
                whose = "fairseq's" if of_stock else "ours"
                print(
                    f"{row.name}, {whose}, {time.monotonic() - began:.0f} s: {outcome}", flush=True
                )
            well &= outcomes[0] == "passed" or bool(row.stock)
    return well


def start_fresh(
    module: str | Path, *argv: object, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a new interpreter."""
    target = [str(module)] if isinstance(module, Path) else ["-m", module]
    return subprocess.run(
        [sys.executable, *target, *map(str, argv)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python tools/field_commands.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name contains TEXT")
    parser.add_argument("--stock", action="store_true", help="fairseq's own architectures, too")
    args = parser.parse_args(argv)
    rows = [row for row in read_rows() if args.only in row.name]
    if not rows:
        raise CommandError(f"no row has {args.only!r} in its name")
    return 0 if run_rows(rows, start_fresh, args.stock) else 1


if __name__ == "__main__":
    run_command(main)
