"""Moses' tokenizer.perl and normalize-punctuation.perl in Python, byte for byte.

sacremoses is the port; what it does otherwise than the Perl scripts (of Moses' master branch) is
mended here. Letters and digits are those of the Unicode version of `regex`, which may be newer
than a Perl's.
"""

from __future__ import annotations

import re

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer

# Perl's \p{IsAlpha}, \p{IsAlnum} and \p{IsN}, to stand in brackets.
ALPHA = r"\p{Alphabetic}"
ALNUM = r"\p{Alphabetic}\p{Nd}"
NUMBER = r"\p{N}"
# Perl's \s is Unicode's white space; Python's takes four control characters more.
BLANK = regex.compile(r"\p{White_Space}*")
SPACES = regex.compile(r"\p{White_Space}+")
JUNK = {code: None for code in range(0x20) if chr(code) not in "\t\n\v\f\r"}
CONTROL = regex.compile(r"\p{C}")


class PerlMosesTokenizer(MosesTokenizer):
    """Tokenizes as tokenizer.perl does, with its XML escapes (`&apos;`, `&#91;` ...).

    Mended: the full stop that ends a sentence is its own token also after an abbreviation or an
    initial (`U.S.A.` -> `U.S.A .`); a letter is what Unicode calls so, Chinese ones among them; a
    line of white space alone stays as it is; control characters separate nothing.
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
        """The tokens of a line, joined by spaces; `aggressive` also splits `a-b` to `a @-@ b`."""
        if BLANK.fullmatch(line):
            return line
        text = line.translate(JUNK)
        return self.tokenize(text, aggressive_dash_splits=aggressive, return_str=True)

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        """Split off full stops where they end a sentence; called by `tokenize`."""
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
        line += "\n"  # the script sees it, and its rule for `."` in German moves it
        for pattern, new in self._rules:
            line = pattern.sub(new, line)
        return line.rstrip("\n")


def remove_control_characters(line: str) -> str:
    """A space for each of them, as remove-non-printing-char.perl has it."""
    return CONTROL.sub(" ", line)


def lower_case(line: str) -> str:
    """Lower case as Perl's `lc`, which knows no final sigma."""
    return line.replace("Σ", "σ").lower()


def single_spaces(line: str) -> str:
    """One space for each stretch of Perl's white space, none at the ends."""
    return SPACES.sub(" ", line).strip(" ")
