"""tools/field_commands.py: the field's published commands, some of which run here."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from forked import ROOT, run_forked

import norm_plugin.models  # noqa: F401  registers the architectures
from field_commands import Corpora, Row, RowError, read_rows, run_row, run_rows, table

ROWS = {row.name: row for row in read_rows()}
SHORT = [name for name, row in ROWS.items() if row.short]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return Corpora(tmp_path_factory.mktemp("corpora"), run_forked)


@pytest.mark.parametrize("name", SHORT)
def test_a_published_command_and_what_follows_it(name, corpora, tmp_path):
    run_row(ROWS[name], corpora, tmp_path / "run", run_forked)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.example])
def test_fairseq_takes_the_flags_of_every_row(name):
    """The flags of a row with code of an example are parsed when that code is imported."""
    argv = ["DATA", *ROWS[name].flags(stock=False)]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    assert args.arch.startswith("norm_") and args.arch in ARCH_MODEL_REGISTRY
    words = shlex.split(ROWS[name].norm)
    assert args.norm_type == words[words.index("--norm-type") + 1]


def test_the_documentation_lists_every_row():
    listed = [line.split("|")[1].strip() for line in table().splitlines()[2:]]
    assert listed == list(ROWS)


def test_the_page_shows_the_command_of_the_table():
    text = (ROOT / "docs" / "coming_from_fairseq.md").read_text(encoding="utf-8")
    first = text.partition("```bash\n")[2].partition("```")[0].replace("\\\n", " ")
    ours = ["--user-dir", "norm_plugin", "--norm-type", "powernorm"]
    folders = ["--save-dir", "checkpoints/powernorm"]
    words = shlex.split(ROWS["translation with BLEU"].train)
    words[1] = f"norm_{words[1]}"
    data = "data-bin/iwslt14.tokenized.de-en"
    assert shlex.split(first) == ["fairseq-train", data, *ours, *folders, *words]


def made_up(stock):
    train = "--arch transformer --max-tokens 99"
    return Row("made up", "nowhere", "pairs", train, ["generate"], "--norm-type none", stock=stock)


@pytest.mark.parametrize(("stock", "well"), [("", False), ("no such thing", True)])
def test_a_row_that_fails_is_reported(stock, well, capsys):
    def fail(module, *argv, **kwargs):
        return subprocess.CompletedProcess([module], int("generate" in str(module)), "", "the end")

    assert run_rows([made_up(stock)], fail, stock=True) == well
    ours, theirs = capsys.readouterr().out.splitlines()
    assert ours.startswith("made up, ours,") and ours.endswith(
        "FAILED: fairseq_cli.generate: the end"
    )
    assert theirs.startswith("made up, fairseq's,")


def test_the_architecture_alone_differs_from_stock():
    ours, stock = (made_up("").flags(of_stock) for of_stock in (False, True))
    assert ours[:4] == ["--arch", "norm_transformer", "--norm-type", "none"]
    assert stock[:2] == ["--arch", "transformer"] and ours[4:] == stock[2:]


def test_the_first_command_that_fails_is_named(tmp_path):
    def fail(module, *argv, **kwargs):
        return subprocess.CompletedProcess([module, "here"], 1, "out", "one\ntwo\nthree\nfour")

    with pytest.raises(RowError, match="here: two / three / four"):
        run_row(made_up(""), Corpora(tmp_path, fail), tmp_path, fail)
