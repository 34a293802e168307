"""Which sentence pairs are kept: the rules of clean-corpus-n.perl of Moses."""

from __future__ import annotations

from typing import NamedTuple

from prep.tokenization import single_spaces

LONGEST_WORD = 1000  # characters


class Limits(NamedTuple):
    """The arguments of clean-corpus-n.perl: -ratio, and the fewest and most words of a side."""

    ratio: float = 1.5
    shortest: int = 1
    longest: int = 175

    def keep(self, source: str, target: str) -> bool:
        """Whether a pair of tidied lines stays in the corpus."""
        words = source.split(" "), target.split(" ")
        few, many = sorted(map(len, words))
        if not source or not target or few < self.shortest or many > self.longest:
            return False
        return many / few <= self.ratio and max(map(len, words[0] + words[1])) <= LONGEST_WORD


def tidy(line: str) -> str:
    """The line with single spaces and without `|`, which Moses reserves for factors.

    The script keeps `|` if the first line of the corpus contains one. No text here has factors, and
    tokenized text contains no `|`.
    """
    return single_spaces(line.replace("|", ""))
