"""Tokenization is Moses' own, byte for byte, and the rules of a corpus come in their order."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from norm_plugin.commands.command_line import CommandError
from prep.text import PERL_SCRIPTS, TextRules, apply_rules, check_moses

MOSES_OUTPUT = json.loads((Path(__file__).parent / "moses_output.json").read_text(encoding="utf-8"))
PLAIN = TextRules(tokenizer="sacremoses")
AGGRESSIVE = TextRules(tokenizer="sacremoses", aggressive=True)
NORMALIZED = AGGRESSIVE._replace(normalize="perl", no_control=True)
TABLES = [
    ("EN", "en", PLAIN),
    ("DE", "de", PLAIN),
    ("EN_AGGRESSIVE", "en", AGGRESSIVE),
    ("DE_AGGRESSIVE", "de", AGGRESSIVE),
    ("EN_NORMALIZED", "en", NORMALIZED),
    ("DE_NORMALIZED", "de", NORMALIZED),
]


@pytest.mark.parametrize(
    ("language", "rules", "line", "expected"),
    [
        pytest.param(language, rules, line, expected, id=f"{name}-{number}")
        for name, language, rules in TABLES
        for number, (line, expected) in enumerate(MOSES_OUTPUT[name])
    ],
)
def test_as_the_perl_scripts(language, rules, line, expected):
    assert apply_rules([line], language, rules) == [expected]


def test_the_other_rules():
    assert apply_rules(["It’s “A”"], "en", TextRules(plain_apostrophe=True)) == ["It's “A”"]
    assert apply_rules(["&quot; a &apos;s &#91; &amp;"], "vi", TextRules(unescape=True)) == [
        "\" a 's [ &"
    ]
    assert apply_rules([" a\r b\u2028"], "vi", TextRules()) == ["a b"]
    # Perl knows no final sigma, Python does.
    assert apply_rules(["ΟΔΟΣ İ"], "en", TextRules(lowercase=True)) == ["οδοσ i̇"]
    # The port's normalization keeps the end of a quotation where Moses' own moves it.
    port = TextRules(normalize="sacremoses")
    assert apply_rules(["„Ja.“"], "de", port) == ['"Ja."']
    assert apply_rules(["„Ja.“"], "de", TextRules(normalize="perl")) == ['"Ja".']


# ---- --tokenizer moses --------------------------------------------------------------------------


@pytest.fixture
def fake_moses(tmp_path, monkeypatch):
    """A checkout whose scripts say how they are called; `perl` is the shell."""
    for name in PERL_SCRIPTS.values():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'sed "s|^|{path.stem} $* > |"\n')
    (tmp_path / "bin").mkdir()
    perl = tmp_path / "bin" / "perl"
    perl.write_text('#!/bin/sh\nexec sh "$@"\n')
    perl.chmod(perl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def test_moses_scripts_are_run_in_their_order(fake_moses):
    rules = NORMALIZED._replace(tokenizer="moses", moses_dir=str(fake_moses))
    check_moses(fake_moses)
    assert apply_rules(["a\u2028b", ""], "de", rules) == [
        "tokenizer -q -l de -a > remove-non-printing-char  > normalize-punctuation de > " + end
        for end in ("a\u2028b", "")
    ]


def test_moses_that_loses_a_line_or_is_not_there_is_an_error(fake_moses, monkeypatch, tmp_path):
    script = fake_moses / PERL_SCRIPTS["tokenize"]
    script.write_text("sed 1d; echo broken >&2")
    rules = PLAIN._replace(tokenizer="moses", moses_dir=str(fake_moses))
    with pytest.raises(CommandError, match=r"ended with 0 and 1 lines for 2: broken"):
        apply_rules(["a", "b"], "en", rules)
    script.unlink()
    with pytest.raises(
        CommandError, match=r"lacks scripts/tokenizer/tokenizer\.perl; pass a check"
    ):
        check_moses(fake_moses)
    script.write_text("cat")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(CommandError, match=r"needs perl on the PATH"):
        check_moses(fake_moses)
