"""A small hand-written grammar: English sentences and their translation into Velan.

Velan is an invented language. Each sentence here has exactly one translation, which takes

word order  verb last: subject, recipient, object, manner, verb; time words come first;
            adjectives follow their noun, in mirrored order; prepositions become postpositions,
            and a prepositional phrase or relative clause precedes the noun it describes
agreement   a noun ends in the vowel of its gender (-o, -a, -u), then -i in the plural, then -n
            as an object; determiners take all three endings, adjectives the first two; a verb
            takes its tense (-ar, -ir, -ur) and, with a plural subject, -en

`the old cat did not see some dogs .` is `ta mirka vesa noin kelodoin palir ne .`

The only source of randomness is `random.Random(seed).random()`, which is the same on every machine
and in every version of Python; those of `choice` and `shuffle` are not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from prep.toy.words import (
    ADJECTIVES,
    BEINGS,
    DETERMINERS,
    DITRANSITIVE,
    INTRANSITIVE,
    MANNERS,
    PLACES,
    PREPOSITIONS,
    TENSES,
    THINGS,
    TIMES,
    TRANSITIVE,
    Noun,
    Verb,
)

SOURCE, TARGET = "en", "xx"  # xx: no real language has this code
SHORTEST, LONGEST = 5, 20  # tokens of a sentence, its full stop included, on either side

T = TypeVar("T")


class NounPhrase(NamedTuple):
    """A noun phrase in both languages, and its number, with which the verb agrees."""

    source: list[str]
    target: list[str]
    plural: bool


def inflect(stem: str, gender: str, plural: bool, is_object: bool = False) -> str:
    """The Velan form of a noun, determiner or adjective: stem, gender, number, case."""
    return stem + gender + ("i" if plural else "") + ("n" if is_object else "")


def conjugate(stem: str, tense: str, plural: bool) -> str:
    """The Velan form of a verb: stem, tense, number of its subject."""
    return stem + TENSES[tense] + ("en" if plural else "")


def english_verb(verb: Verb, tense: str, plural: bool, negated: bool = False) -> list[str]:
    """The English words of a verb in the third person."""
    if negated:
        present = "do" if plural else "does"
        return [{"present": present, "past": "did", "future": "will"}[tense], "not", verb.base]
    present = verb.base if plural else verb.third
    return {"present": [present], "past": [verb.past], "future": ["will", verb.base]}[tense]


class Grammar:
    """Draws sentence pairs; a seed determines the sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def noun_phrase(
        self, nouns: Sequence[Noun], is_object: bool, modified: float = 0.0
    ) -> NounPhrase:
        """A noun with its determiner and adjectives.

        `modified` is the probability that a phrase or clause describes the noun.
        """
        noun, determiner = self._pick(nouns), self._pick(DETERMINERS)
        plural = self._chance(0.4)
        adjectives = [self._pick(ADJECTIVES)] if self._chance(0.4) else []
        if adjectives and self._chance(0.2):
            adjectives.append(self._pick([a for a in ADJECTIVES if a != adjectives[0]]))
        article = determiner.plural if plural else determiner.singular
        source = [word for word, _ in adjectives] + [noun.plural if plural else noun.singular]
        if article == "a" and source[0][0] in "aeiou":
            article = "an"
        target = [
            inflect(determiner.stem, noun.gender, plural, is_object),
            inflect(noun.stem, noun.gender, plural, is_object),
            *(inflect(stem, noun.gender, plural) for _, stem in reversed(adjectives)),
        ]
        after, before = self._modifier(noun, plural) if self._chance(modified) else ([], [])
        return NounPhrase([article, *source, *after], before + target, plural)

    def _modifier(self, noun: Noun, plural: bool) -> tuple[list[str], list[str]]:
        """What describes a noun: English words that follow it, Velan words that precede it."""
        if self._chance(0.5):
            preposition, postposition = self._pick(PREPOSITIONS)
            place = self.noun_phrase(PLACES, is_object=False)
            return [preposition, *place.source], [*place.target, postposition]
        verb, tense = self._pick(TRANSITIVE), self._pick(("present", "past"))
        if noun in BEINGS and self._chance(0.6):  # the noun is the subject of the clause
            other = self.noun_phrase(BEINGS + THINGS, is_object=True)
            source = [*english_verb(verb, tense, plural), *other.source]
            return ["which", *source], [*other.target, conjugate(verb.stem, tense, plural), "ke"]
        other = self.noun_phrase(BEINGS, is_object=False)
        source = [*other.source, *english_verb(verb, tense, other.plural)]
        return ["which", *source], [*other.target, conjugate(verb.stem, tense, other.plural), "ke"]

    def _predicate(self) -> tuple[Verb, list[str], list[str]]:
        """A verb with its objects: English words after it, Velan words before it."""
        kind = self._random()
        if kind < 0.2:
            return self._pick(INTRANSITIVE), [], []
        if kind < 0.8:
            other = self.noun_phrase(BEINGS + THINGS, is_object=True, modified=0.35)
            return self._pick(TRANSITIVE), other.source, other.target
        gift = self.noun_phrase(THINGS, is_object=True)
        receiver = self.noun_phrase(BEINGS, is_object=False)
        target = [*receiver.target, "ri", *gift.target]
        return self._pick(DITRANSITIVE), [*gift.source, "to", *receiver.source], target

    def sentence(self) -> tuple[list[str], list[str]]:
        """One sentence: the English tokens and the Velan tokens."""
        subject = self.noun_phrase(BEINGS, is_object=False, modified=0.3)
        verb, after, before = self._predicate()
        tense, negated = self._pick(tuple(TENSES)), self._chance(0.15)
        manner = self._pick(MANNERS) if self._chance(0.3) else ["", ""]
        time = self._pick(TIMES[tense]) if self._chance(0.35) else ["", ""]
        source = [*subject.source, *english_verb(verb, tense, subject.plural, negated)]
        source += [*after, manner[0]]
        source = [time[0], *source] if self._chance(0.5) else [*source, time[0]]
        target = [time[1], *subject.target, *before, manner[1]]
        target += [conjugate(verb.stem, tense, subject.plural), "ne" if negated else ""]
        return [word for word in source if word] + ["."], [word for word in target if word] + ["."]

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Endless sentence pairs, no English sentence twice, tokens joined by spaces."""
        seen = set()
        while True:
            source, target = self.sentence()
            fits = all(SHORTEST <= len(side) <= LONGEST for side in (source, target))
            if fits and tuple(source) not in seen:
                seen.add(tuple(source))
                yield " ".join(source), " ".join(target)
