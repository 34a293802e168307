"""The field's published commands with our architectures, on a corpus of a few hundred lines.

Each row of field_commands.yaml is a published command line of fairseq-train, with norm_ in front of
its architecture, and the commands after the training. Flags that only set the size are overridden:
a tiny model makes a few updates on a CPU, where --memory-efficient-fp16 replaces --fp16, which
needs a GPU. Rows that are not ``short`` have the mark slow: pytest -m slow.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from forked import ROOT, run_forked

import norm_plugin.models  # noqa: F401  registers the architectures
from norm_plugin.io.files import read_text, write_text

PLUGIN = ROOT / "norm_plugin"
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
BRIEF = f"--update-freq 1 --warmup-updates 2 --max-update {UPDATES} --max-epoch 9".split()


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
    short: bool = False

    def followed_by(self) -> list[tuple[str, list[str]]]:
        """Return the commands that follow the training, each with its flags."""
        return [(step, []) if isinstance(step, str) else (step[0], step[1:]) for step in self.then]

    def flags(self) -> list[str]:
        """Return the flags of fairseq-train, without the corpus and the folder."""
        words = [HALF if word == "--fp16" else word for word in shlex.split(self.train)]
        place = next(i for i, word in enumerate(words) if word in ("--arch", "-a")) + 1
        arch = words[place]
        words[place : place + 1] = [self.arch or f"norm_{arch}", *shlex.split(self.norm)]
        sides = []
        if self.data == "text":
            sides = _size("decoder" if "language_modeling" in words else "encoder")
        return [*words, *SMALL[self.data], *sides, *BRIEF, *shlex.split(self.small), *CPU]


ROWS = {
    name: Row(name, **values)
    for name, values in yaml.safe_load(
        Path(__file__).with_name("field_commands.yaml").read_text(encoding="utf-8")
    ).items()
}


@dataclass
class Corpora:
    """The corpora of all kinds, made from the toy corpus in ``folder`` when first needed."""

    folder: Path
    made: dict[str, Path] = field(default_factory=dict)

    def get(self, kind: str) -> Path:
        """Return the binarized corpus of a kind."""
        if kind not in self.made:
            self.made[kind] = getattr(self, f"_{kind}")()
        return self.made[kind]

    def _pairs(self) -> Path:
        out = self.folder / "toy"
        sizes = ("--train", 200, "--valid", 16, "--test", 16, "--workers", 1)
        run(ROOT / "data-prep" / "toy.py", "--out", out, *sizes)
        return out / "bin"

    def _text_of(self, split: str) -> Path:
        self.get("pairs")
        return self.folder / "toy" / "tok" / f"{split}.en"

    def _binarize(self, out: Path, train: Path, valid: Path, *flags: object) -> None:
        files = ("--trainpref", train, "--validpref", valid, "--testpref", valid)
        run("fairseq_cli.preprocess", *files, "--destdir", out, "--workers", 1, *flags)

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


def run(module: str | Path, *argv: object, stdin: str = "") -> None:
    """Run a command; fail with the last lines that it prints if it fails."""
    result = run_forked(module, *argv, stdin=stdin)
    assert result.returncode == 0, (result.args, (result.stdout + result.stderr)[-2000:])


def run_row(row: Row, corpora: Corpora, folder: Path) -> None:
    """Run the training of a row and the commands after it."""
    data = corpora.get(row.data)
    user_dir = _user_dir(row, folder)
    ours = ("--user-dir", user_dir)
    train = (data, *ours, "--save-dir", folder, *row.flags())
    run("fairseq_cli.train", *train)
    last = path = folder / "checkpoint_last.pt"
    for step, flags in row.followed_by():
        given = (data, *ours, "--path", path, *CPU)
        match step:
            case "resume":
                longer = ("--max-update", UPDATES + 2, "--restore-file", "checkpoint_last.pt")
                run("fairseq_cli.train", *train, *longer)
            case "average":
                path = folder / "averaged.pt"
                run("norm_plugin", "average", "--inputs", last, "--output", path, *ours)
            case "validate":
                task = [] if flags else _task_flags(row)
                run("fairseq_cli.validate", *given, *task, *flags)
            case "eval-lm":
                sizes = ("--tokens-per-sample", 64, "--max-tokens", 512, *ANY_NUMBER)
                run("fairseq_cli.eval_lm", *given, *sizes, *flags)
            case "generate":
                small = ("--beam", 2, "--max-len-b", 8, "--max-tokens", 2048)
                run("fairseq_cli.generate", *given, *small, *flags)
            case "interactive":
                line = read_text(corpora.folder / "toy" / "tok" / "test.en").splitlines()[0]
                word = read_text(data / "dict.xx.txt").split()[0]
                argv = (*given, "--max-len-b", 8, *flags)
                run("fairseq_cli.interactive", *argv, stdin=f"{line}\t{word}\n")
            case "hub":
                script = folder / "hub.py"
                write_text(script, HUB.format(path=str(path), data=str(data)))
                run(script)
            case _:
                raise ValueError(f"{row.name}: the step {step} is unknown; see run_row")


HUB = """
import norm_plugin.models
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


def _user_dir(row: Row, folder: Path) -> Path:
    """Return the ``--user-dir``: ours, or one that imports the example's code too."""
    if not row.example:
        return PLUGIN
    package, _, module = row.example.rpartition(".")
    own = folder / f"example_{module}"
    own.mkdir(parents=True)
    lines = f"from fairseq.examples.{package} import {module}\nimport norm_plugin.models\n"
    write_text(own / "__init__.py", lines)
    return own


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return Corpora(tmp_path_factory.mktemp("corpora"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if row.short else pytest.mark.slow) for name, row in ROWS.items()],
)
def test_a_published_command_and_what_follows_it(name, corpora, tmp_path):
    run_row(ROWS[name], corpora, tmp_path / "run")


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.example])
def test_fairseq_takes_the_flags_of_every_row(name):
    """The flags of a row with code of an example are parsed when that code is imported."""
    argv = ["DATA", *ROWS[name].flags()]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    assert args.arch.startswith("norm_") and args.arch in ARCH_MODEL_REGISTRY
    words = shlex.split(ROWS[name].norm)
    assert args.norm_type == words[words.index("--norm-type") + 1]


def test_the_page_shows_the_command_of_the_table():
    text = (ROOT / "docs" / "coming_from_fairseq.md").read_text(encoding="utf-8")
    first = text.partition("```bash\n")[2].partition("```")[0].replace("\\\n", " ")
    ours = ["--user-dir", "norm_plugin", "--norm-type", "powernorm"]
    folders = ["--save-dir", "checkpoints/powernorm"]
    words = shlex.split(ROWS["translation with BLEU"].train)
    words[1] = f"norm_{words[1]}"
    data = "data-bin/iwslt14.tokenized.de-en"
    assert shlex.split(first) == ["fairseq-train", data, *ours, *folders, *words]
