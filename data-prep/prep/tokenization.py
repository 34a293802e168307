"""Moses' tokenizer.perl and normalize-punctuation.perl in Python, byte for byte.

sacremoses is a port of these scripts. The places where it differs from Moses' master branch are
corrected here. Letters and digits are those of the Unicode version of `regex`, which may be newer
than that of an installed Perl.
"""

from __future__ import annotations

import re

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer

# Perl's \p{IsAlpha}, \p{IsAlnum} and \p{IsN}, for use in brackets.
ALPHA = r"\p{Alphabetic}"
ALNUM = r"\p{Alphabetic}\p{Nd}"
NUMBER = r"\p{N}"
# Perl's \s is Unicode's white space; Python's matches four control characters more.
BLANK = regex.compile(r"\p{White_Space}*")
SPACES = regex.compile(r"\p{White_Space}+")
JUNK = {code: None for code in range(0x20) if chr(code) not in "\t\n\v\f\r"}
CONTROL = regex.compile(r"\p{C}")


class PerlMosesTokenizer(MosesTokenizer):
    """Tokenizes as tokenizer.perl does, with its XML escapes (`&apos;`, `&#91;` ...).

    Corrected: the full stop at the end of a sentence is a token of its own also after an
    abbreviation or an initial (`U.S.A.` -> `U.S.A .`); letters are all letters of Unicode, the
    Chinese among them; a line of white space stays as it is; control characters do not separate
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
        """The tokens of a line, joined by spaces; `aggressive` also splits `a-b` into `a @-@ b`."""
        if BLANK.fullmatch(line):
            return line
        text = line.translate(JUNK)
        return self.tokenize(text, aggressive_dash_splits=aggressive, return_str=True)

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        """Split off the full stop that ends a sentence; called by `tokenize`."""
        return re.sub(r"(?<=\S)\.$", " .", super().handles_nonbreaking_prefixes(text))

    def isanyalpha(self, text: str) -> bool:
        """Whether a letter occurs in `text`."""
        return regex.search(rf"[{ALPHA}]", text) is not None

    def islower(self, text: str) -> bool:
        """Whether `text` begins with a lower-case letter."""
        return regex.match(r"\p{Lowercase}", text) is not None


class PerlPunctNormalizer:
    """Normalizes punctuation as normalize-punctuation.perl does."""

    def __init__(self, language: str) -> None:
        rules = MosesPunctNormalizer(language, perl_parity=True).substitutions
        # ASCII: the script reads bytes.
        self._rules = [(re.compile(pattern, re.ASCII), new) for pattern, new in rules]

    def normalize(self, line: str) -> str:
        """The line with plain quotes, dashes and spaces."""
        line += "\n"  # the script sees it: its German rule for `."` depends on it
        for pattern, new in self._rules:
            line = pattern.sub(new, line)
        return line.rstrip("\n")


def remove_control_characters(line: str) -> str:
    """Replace each control character by a space, as remove-non-printing-char.perl does."""
    return CONTROL.sub(" ", line)


def lower_case(line: str) -> str:
    """Lowercase as Perl's `lc` does, which does not know the final sigma."""
    return line.replace("Σ", "σ").lower()


def single_spaces(line: str) -> str:
    """One space for each run of white space in Perl's sense, none at the ends."""
    return SPACES.sub(" ", line).strip(" ")
