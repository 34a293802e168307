"""Learns BPE from millions of words in little memory: the merges of subword-nmt, in numpy.

subword-nmt keeps a Python object for each pair of symbols in each word: 2 GB for a million words.
Here all words are one array of symbols, with an index of the places of each symbol. A test checks
that the merges are the same. `_PairCounts` also reproduces that subword-nmt prunes rare pairs and
counts them only approximately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

FEWEST = 2  # a pair that occurs less often is not merged
PRUNE_EVERY = 100
END = "</w>"  # part of the last symbol of a word
PART = 1 << 20  # places counted at once
SHIFT = 32  # a pair of symbols is one integer: the first shifted by this, plus the second

Array = Any  # of numpy
Changes = Iterable[tuple[int, int]]


def learn_merges(frequencies: Mapping[str, int], most: int) -> Iterator[tuple[str, str]]:
    """Yield at most `most` merges, best first. `frequencies`: of each word."""
    text = _Text(frequencies)
    pairs = _PairCounts(text.count_pairs(), text.symbols)
    for number in range(most):
        best = pairs.best(number)
        if best is None:
            return
        first, second = best >> SHIFT, best & ((1 << SHIFT) - 1)
        yield text.symbols[first], text.symbols[second]
        pairs.change(*text.merge(first, second))
        pairs.finish(best, number)


class _PairCounts:
    """The counts of the pairs. Rare pairs are pruned, so that the best one is found quickly."""

    def __init__(self, counts: dict[int, int], symbols: list[str]) -> None:
        self._symbols = symbols
        self._counts = defaultdict(int, counts)
        self._aside: defaultdict[int, int] = defaultdict(int, counts)
        self._threshold = max(counts.values(), default=0) / 10

    def best(self, number: int) -> int | None:
        """The most frequent pair for merge `number`; among equals, the last by its symbols."""
        highest = max(self._counts.values(), default=-1)
        if not self._counts or (number and highest < self._threshold):
            self._prune()
            self._counts = self._aside.copy()
            highest = max(self._counts.values(), default=0)
            self._threshold = highest * number / (number + 10000.0)
            self._prune()
        if highest < FEWEST:
            return None
        equals = (pair for pair, count in self._counts.items() if count == highest)
        return max(equals, key=self._names)

    def _names(self, pair: int) -> tuple[str, str]:
        return self._symbols[pair >> SHIFT], self._symbols[pair & ((1 << SHIFT) - 1)]

    def change(self, fewer: Changes, more: Changes) -> None:
        """Update the counts after a merge."""
        for pair, count in fewer:
            self._counts[pair] -= count
        for pair, count in more:
            self._counts[pair] += count

    def finish(self, merged: int, number: int) -> None:
        """Forget the merged pair; now and then, prune rare pairs."""
        self._counts[merged] = 0
        if number % PRUNE_EVERY == 0:
            self._prune()

    def _prune(self) -> None:
        for pair in [pair for pair, count in self._counts.items() if count < self._threshold]:
            count = self._counts.pop(pair)
            # A negative count is a change to a pair that was pruned before.
            total = count + self._aside[pair] if count < 0 else count
            if total:
                self._aside[pair] = total
            else:
                self._aside.pop(pair, None)


class _Text:
    """All words in one array: a symbol at each place, with links to the previous and next place."""

    def __init__(self, frequencies: Mapping[str, int]) -> None:
        lengths = np.fromiter(map(len, frequencies), np.int64, len(frequencies))
        letters = np.frombuffer("".join(frequencies).encode("utf-32-le"), np.int32)
        last = np.cumsum(lengths) - 1
        codes = letters * 2
        codes[last] += 1  # odd: ends a word
        known = np.flatnonzero(np.bincount(codes))
        number_of_code = np.zeros(len(codes) and codes.max() + 1, np.int32)
        number_of_code[known] = np.arange(len(known))
        self.symbols = [chr(code >> 1) + (END if code & 1 else "") for code in known.tolist()]
        self._symbol = number_of_code[codes]
        self._word = np.repeat(np.arange(len(frequencies), dtype=np.int32), lengths)
        self._frequency = np.fromiter(frequencies.values(), np.int64, len(frequencies))
        places = np.arange(len(letters), dtype=np.int32)
        self._next = places + 1
        self._next[last] = -1
        self._previous = places - 1
        self._previous[last - lengths + 1] = -1
        by_symbol = np.argsort(self._symbol, kind="stable").astype(np.int32)
        sizes = np.bincount(self._symbol, minlength=len(known))
        # The places of each symbol, in order; some may have been merged since.
        self._places = dict(enumerate(np.split(by_symbol, np.cumsum(sizes)[:-1])))

    def count_pairs(self) -> dict[int, int]:
        """The count of each pair."""
        counts: defaultdict[int, int] = defaultdict(int)
        for start in range(0, len(self._symbol), PART):
            part = np.arange(start, min(start + PART, len(self._symbol)), dtype=np.int32)
            for pair, count in self._count(part):
                counts[pair] += count
        return counts

    def merge(self, first: int, second: int) -> tuple[Changes, Changes]:
        """Merge a pair everywhere; returns the pairs that disappear and the new pairs."""
        left = self._find(first, second)
        right = self._next[left]
        gone = self._pairs_at(self._previous[left], left, right)
        # Always a new symbol: as a pair is merged everywhere at once, no two merges give the same
        # string.
        merged = len(self.symbols)
        self.symbols.append(self.symbols[first] + self.symbols[second])
        after = self._next[right]
        self._next[left] = after
        self._previous[after[after >= 0]] = left[after >= 0]
        self._symbol[left] = merged
        self._symbol[right] = -1
        self._places[merged] = left
        return gone, self._pairs_at(self._previous[left], left)

    def _find(self, first: int, second: int) -> Array:
        """Places of `first` followed by `second`, in order and without overlap."""
        if len(self._places[first]) <= len(self._places[second]):
            left = self._places[first] = self._still(first)
        else:
            right = self._places[second] = self._still(second)
            left = self._previous[right]
            left = left[left >= 0]
            left = left[self._symbol[left] == first]
        right = self._next[left]
        left = left[(right >= 0) & (self._symbol[right] == second)]
        if first == second and len(left):  # of aaa, the first two
            follows = np.concatenate([[False], left[1:] == self._next[left[:-1]]])
            number = np.arange(len(left))
            start = np.maximum.accumulate(np.where(follows, 0, number))
            left = left[(number - start) % 2 == 0]
        return left

    def _still(self, symbol: int) -> Array:
        places = self._places[symbol]
        return places[self._symbol[places] == symbol]

    def _pairs_at(self, *places: Array) -> Changes:
        starts = np.unique(np.concatenate(places))
        return self._count(starts[starts >= 0])

    def _count(self, starts: Array) -> Changes:
        """Each pair that begins at one of the places, with its number of occurrences."""
        starts = starts[self._next[starts] >= 0]
        pairs = self._symbol[starts].astype(np.int64) << SHIFT
        pairs |= self._symbol[self._next[starts]]
        unique, which = np.unique(pairs, return_inverse=True)
        counts = np.bincount(which, self._frequency[self._word[starts]], len(unique))
        return zip(unique.tolist(), counts.astype(np.int64).tolist())
