"""The rules that turn a raw line into words, as one value that can be sent to other processes."""

from __future__ import annotations

import html
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sacremoses import MosesPunctNormalizer

from prep.messages import PrepError
from prep.tokenization import (
    PerlMosesTokenizer,
    PerlPunctNormalizer,
    lower_case,
    remove_control_characters,
    single_spaces,
)

TOKENIZERS = ("sacremoses", "moses")
PERL_SCRIPTS = {
    "normalize": "scripts/tokenizer/normalize-punctuation.perl",
    "control": "scripts/tokenizer/remove-non-printing-char.perl",
    "tokenize": "scripts/tokenizer/tokenizer.perl",
}


class TextRules(NamedTuple):
    """What is done to a raw line, in this order; by default nothing but single spaces."""

    plain_apostrophe: bool = False  # ’ becomes ', as fairseq's scripts do in test sets
    unescape: bool = False  # &apos; and other escapes, of text that comes tokenized
    normalize: str = ""  # punctuation: "perl" as Moses does, "sacremoses" as its port does
    no_control: bool = False  # control characters become spaces
    tokenizer: str = ""  # one of TOKENIZERS; empty: white space becomes single spaces
    aggressive: bool = False  # the tokenizer splits a-b into a @-@ b
    no_escapes: bool = False  # what the tokenizer has written as &apos; becomes ' again
    lowercase: bool = False
    moses_dir: str = ""  # a checkout of Moses, for "moses"


WIKITEXT = TextRules(tokenizer="sacremoses", aggressive=True, no_escapes=True)
"""Makes of a plain text about what WikiText has: its authors used Moses, and undid the escapes."""

# Built once a language and process; that takes longer than tokenizing a thousand lines.
_tokenizer = lru_cache(maxsize=None)(PerlMosesTokenizer)
_perl_normalizer = lru_cache(maxsize=None)(PerlPunctNormalizer)
_other_normalizer = lru_cache(maxsize=None)(MosesPunctNormalizer)


def apply_rules(lines: list[str], language: str, rules: TextRules) -> list[str]:
    """The lines after `rules`; as many as went in."""
    perl = rules.tokenizer == "moses"
    if rules.plain_apostrophe:
        lines = [line.replace("’", "'") for line in lines]
    if rules.unescape:
        lines = [html.unescape(line) for line in lines]
    if rules.normalize == "sacremoses":
        lines = [_other_normalizer(language).normalize(line) for line in lines]
    elif rules.normalize:
        if perl:
            lines = _run_perl("normalize", rules, lines, language)
        else:
            lines = [_perl_normalizer(language).normalize(line) for line in lines]
    if rules.no_control:
        if perl:
            lines = _run_perl("control", rules, lines)
        else:
            lines = [remove_control_characters(line) for line in lines]
    if perl:
        options = ["-q", "-l", language, *(["-a"] if rules.aggressive else [])]
        lines = _run_perl("tokenize", rules, lines, *options)
    elif rules.tokenizer:
        lines = [_tokenizer(language).tokenize_line(line, rules.aggressive) for line in lines]
    else:
        lines = [single_spaces(line) for line in lines]
    if rules.no_escapes:
        lines = [html.unescape(line) for line in lines]
    return [lower_case(line) for line in lines] if rules.lowercase else lines


def _run_perl(step: str, rules: TextRules, lines: list[str], *options: str) -> list[str]:
    command = ["perl", str(Path(rules.moses_dir) / PERL_SCRIPTS[step]), *options]
    text = "".join(f"{line}\n" for line in lines).encode()
    done = subprocess.run(command, input=text, capture_output=True)
    # Split at "\n" and nowhere else; splitlines knows more line ends.
    result = done.stdout.decode().split("\n")[:-1]
    if done.returncode != 0 or len(result) != len(lines):
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise PrepError(
            f"{' '.join(command)} ended with {done.returncode} and {len(result):,} lines for "
            f"{len(lines):,}: {said[-1]}"
        )
    return result


def check_moses(folder: Path) -> None:
    """Raise PrepError if `folder` is no checkout of Moses, or its scripts do not run."""
    for name in PERL_SCRIPTS.values():
        if not (folder / name).is_file():
            raise PrepError(
                f"--moses-dir {folder} lacks {name}; pass a checkout of mosesdecoder, or "
                "--tokenizer sacremoses, which gives the same bytes without Perl"
            )
    try:
        rules = TextRules(tokenizer="moses", moses_dir=str(folder))
        apply_rules(["a line"], "en", rules)
    except FileNotFoundError:
        raise PrepError("--tokenizer moses needs perl on the PATH; there is none") from None
