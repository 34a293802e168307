"""Process raw lines and filter sentence pairs as the scripts of Moses do.

The output of the tokenizer and the normalizer equals that of tokenizer.perl and
normalize-punctuation.perl, byte for byte. sacremoses is a port of these scripts; its differences
from Moses' master branch are corrected here. Letters and digits are those of the Unicode version of
`regex`, which may be newer than that of an installed Perl.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import NamedTuple

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer

# Perl's \p{IsAlpha}, \p{IsAlnum} and \p{IsN}, for character classes.
ALPHA = r"\p{Alphabetic}"
ALNUM = r"\p{Alphabetic}\p{Nd}"
NUMBER = r"\p{N}"
# Perl's \s is Unicode's white space; Python's also matches four control characters.
BLANK = regex.compile(r"\p{White_Space}*")
SPACES = regex.compile(r"\p{White_Space}+")
JUNK = {code: None for code in range(0x20) if chr(code) not in "\t\n\v\f\r"}
CONTROL = regex.compile(r"\p{C}")


class PerlMosesTokenizer(MosesTokenizer):
    """Tokenizes as tokenizer.perl does, with its XML escapes (`&apos;`, `&#91;` ...).

    Corrections of sacremoses: a full stop at the end of a sentence is a token also after an
    abbreviation or an initial (`U.S.A.` -> `U.S.A .`); letters are all letters of Unicode,
    including Chinese; a line of white space is not changed; control characters do not separate
    words.
    """

    PAD_NOT_ISALNUM = regex.compile(rf"([^{ALNUM}\s.'`,\-])"), r" \1 "
    AGGRESSIVE_HYPHEN_SPLIT = regex.compile(rf"([{ALNUM}])-(?=[{ALNUM}])"), r"\1 @-@ "
    COMMA_SEPARATE_1 = regex.compile(rf"([^{NUMBER}]),"), r"\1 , "
    COMMA_SEPARATE_2 = regex.compile(rf",([^{NUMBER}])"), r" , \1"
    COMMA_SEPARATE_3 = regex.compile(rf"([{NUMBER}]),$"), r"\1 , "
    ENGLISH_SPECIFIC_APOSTROPHE = [
        (regex.compile(rf"([^{ALPHA}])'([^{ALPHA}])"), r"\1 ' \2"),
        (regex.compile(rf"([^{ALPHA}{NUMBER}])'([{ALPHA}])"), r"\1 ' \2"),
        (regex.compile(rf"([{ALPHA}])'([^{ALPHA}])"), r"\1 ' \2"),
        (regex.compile(rf"([{ALPHA}])'([{ALPHA}])"), r"\1 '\2"),
        (regex.compile(rf"([{NUMBER}])'(s)"), r"\1 '\2"),
    ]

    def tokenize_line(self, line: str, aggressive: bool = False) -> str:
        """Return the tokens of a line, with spaces between; `aggressive` makes `a-b` `a @-@ b`."""
        if BLANK.fullmatch(line):
            return line
        text = line.translate(JUNK)
        return self.tokenize(text, aggressive_dash_splits=aggressive, return_str=True)

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        """Split off the full stop that ends a sentence; called by `tokenize`."""
        return re.sub(r"(?<=\S)\.$", " .", super().handles_nonbreaking_prefixes(text))

    def isanyalpha(self, text: str) -> bool:
        """Return whether a letter occurs in `text`."""
        return regex.search(rf"[{ALPHA}]", text) is not None

    def islower(self, text: str) -> bool:
        """Return whether `text` begins with a lower-case letter."""
        return regex.match(r"\p{Lowercase}", text) is not None


@lru_cache
def _punctuation_rules(language: str) -> list[tuple[re.Pattern[str], str]]:
    rules = MosesPunctNormalizer(language, perl_parity=True).substitutions
    # ASCII: the script reads bytes.
    return [(re.compile(pattern, re.ASCII), new) for pattern, new in rules]


def normalize_punctuation(line: str, language: str) -> str:
    """Return the line with plain quotes, dashes and spaces, as normalize-punctuation.perl does."""
    line += "\n"  # the script's German rule for `."` depends on it
    for pattern, new in _punctuation_rules(language):
        line = pattern.sub(new, line)
    return line.rstrip("\n")


def lower_case(line: str) -> str:
    """Lowercase as Perl's `lc` does, without a final sigma."""
    return line.replace("Σ", "σ").lower()


def single_spaces(line: str) -> str:
    """Replace each run of white space (Perl's) by one space, and strip the line."""
    return SPACES.sub(" ", line).strip(" ")


# ---- the rules of a corpus ------------------------------------------------------------------


class TextRules(NamedTuple):
    """The processing of a raw line, in this order; the default only normalizes spaces."""

    plain_apostrophe: bool = False  # ’ becomes ', as fairseq's scripts do in test sets
    unescape: bool = False  # replace &apos; and other escapes of tokenized text
    normalize: str = ""  # normalize punctuation: "perl" as Moses, "sacremoses" as its port
    no_control: bool = False  # replace control characters by spaces
    tokenizer: str = ""  # "sacremoses"; empty: only normalize spaces
    aggressive: bool = False  # the tokenizer splits a-b into a @-@ b
    no_escapes: bool = False  # undo the escapes of the tokenizer, such as &apos;
    lowercase: bool = False


WIKITEXT = TextRules(tokenizer="sacremoses", aggressive=True, no_escapes=True)
"""A note on the tokenization of WikiText: its authors used Moses, and undid the escapes."""

# Cached, because building one takes longer than tokenizing a thousand lines.
_tokenizer = lru_cache(PerlMosesTokenizer)
_other_normalizer = lru_cache(MosesPunctNormalizer)


def apply_rules(lines: list[str], language: str, rules: TextRules) -> list[str]:
    """Return the lines after processing by `rules`; their number does not change."""
    if rules.plain_apostrophe:
        lines = [line.replace("’", "'") for line in lines]
    if rules.unescape:
        lines = [html.unescape(line) for line in lines]
    if rules.normalize == "sacremoses":
        lines = [_other_normalizer(language).normalize(line) for line in lines]
    elif rules.normalize:
        lines = [normalize_punctuation(line, language) for line in lines]
    if rules.no_control:  # each becomes a space, as in remove-non-printing-char.perl
        lines = [CONTROL.sub(" ", line) for line in lines]
    if rules.tokenizer:
        lines = [_tokenizer(language).tokenize_line(line, rules.aggressive) for line in lines]
    else:
        lines = [single_spaces(line) for line in lines]
    if rules.no_escapes:
        lines = [html.unescape(line) for line in lines]
    return [lower_case(line) for line in lines] if rules.lowercase else lines


# ---- which pairs are kept -------------------------------------------------------------------

LONGEST_WORD = 1000  # characters


class Limits(NamedTuple):
    """The arguments of clean-corpus-n.perl: -ratio, and the minimum and maximum of words."""

    ratio: float = 1.5
    shortest: int = 1
    longest: int = 175

    def keep(self, source: str, target: str) -> bool:
        """Return whether a pair of tidied lines is kept."""
        sides = source.split(" "), target.split(" ")
        few, many = sorted(map(len, sides))
        if not source or not target or few < self.shortest or many > self.longest:
            return False
        return many / few <= self.ratio and max(map(len, sides[0] + sides[1])) <= LONGEST_WORD


def tidy(line: str) -> str:
    """Return the line with single spaces and without `|`, which Moses reserves for factors.

    The script keeps `|` if the first line of the corpus contains one. No text here has factors, and
    tokenized text has no `|`.
    """
    return single_spaces(line.replace("|", ""))
