#!/usr/bin/env python3
"""Write the toy corpus (English and Velan, an invented language) and prepare it.

The text is lowercase, needs no BPE and is generated in seconds. The same --seed gives the same
bytes on every machine. Language codes: en and xx. Each English sentence has exactly one
translation, by these rules:

word order  verb last: subject, recipient, object, manner, verb; time words come first;
            adjectives follow their noun, in mirrored order; prepositions become postpositions,
            and a prepositional phrase or relative clause precedes the noun it describes
agreement   a noun ends in the vowel of its gender (-o, -a, -u), then -i in the plural, then -n
            as an object; determiners take all three endings, adjectives the first two; a verb
            takes its tense (-ar, -ir, -ur) and, with a plural subject, -en

`the old cat did not see some dogs .` is `ta mirka vesa noin kelodoin palir ne .`
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TypeVar

from norm_plugin.io.command_line import at_least
from prep.binarize import make_dictionary, publish_binary
from prep.files import SPLITS, report, write_lines
from prep.folder import Counts, make_data_spec, publish
from prep.stages import SEED, make_parser, run

SOURCE, TARGET = "en", "xx"  # xx: no real language has this code
SHORTEST, LONGEST = 5, 20  # tokens per sentence, its full stop included, on either side
T = TypeVar("T")
Row = list[str]


def _rows(table: str) -> list[Row]:
    return [row.split() for row in table.split(",")]


# English singular, plural; Velan stem, gender
BEINGS = _rows("""
    dog dogs kelod o, cat cats mirk a, bird birds sifel u, horse horses tarpan o,
    girl girls lumin a, boy boys dorik o, woman women halen a, man men borut o,
    child children pinel u, teacher teachers sodar u, farmer farmers grenok o,
    doctor doctors medil a, sailor sailors navor u, painter painters kolit a,
    singer singers melod a, neighbour neighbours viszen o, friend friends amerl u,
    king kings regol u
""")
THINGS = _rows("""
    book books libet a, letter letters skrip u, apple apples pomer a, cup cups kalik o,
    chair chairs sedul u, hat hats kapor o, boat boats barken a, lamp lamps luker u,
    stone stones petrok o, flower flowers florin a, key keys klavut u,
    basket baskets korbel o, coat coats mantil a, picture pictures bildur o,
    wheel wheels rotan u, drum drums tamber a
""")
PLACES = _rows("""
    house houses domar a, tree trees arbok o, river rivers fluvin u, garden gardens jardel o,
    bridge bridges pontur u, tower towers turil a
""")
# English before a singular, before a plural; Velan stem
DETERMINERS = _rows("""
    the the t, a some n, this these k, that those v, my my mer, your your zel, our our nor
""")
# English, Velan
ADJECTIVES = _rows("""
    old ves, small pet, big gran, red rus, green verd, happy felik, quiet sil, young jun,
    clever sapin, beautiful belor, tired lasin, strong fort
""")
PREPOSITIONS = _rows("""
    near apu, behind deru, under subu, above supru, beside ladu
""")
MANNERS = _rows("""
    slowly lente, quickly rapide, often ofte, again retre, happily felike, quietly sile,
    together kune
""")
TIMES = {
    "present": _rows("today hodie, now nune"),
    "past": _rows("yesterday ieri, earlier prime"),
    "future": _rows("tomorrow kras, soon balde"),
}
OBJECT = "n"
TENSES = {"present": "ar", "past": "ir", "future": "ur"}
# English base form, third person, past; Velan stem
TRANSITIVE = _rows("""
    see sees saw pal, find finds found trov, hold holds held ten, paint paints painted kolor,
    love loves loved amik, hear hears heard aud, carry carries carried port,
    follow follows followed sek, watch watches watched gard,
    remember remembers remembered memor, draw draws drew desin, help helps helped adjun
""")
INTRANSITIVE = _rows("""
    sleep sleeps slept dorm, sing sings sang kant, walk walks walked mars,
    laugh laughs laughed rid, wait waits waited tard, swim swims swam nat
""")
DITRANSITIVE = _rows("""
    give gives gave don, show shows showed mostr, send sends sent mand,
    bring brings brought fer
""")


def english_verb(verb: Row, tense: str, plural: bool, negated: bool = False) -> list[str]:
    """Return the English words of a verb in the third person."""
    base, third, past, _ = verb
    if negated:
        present = "do" if plural else "does"
        return [{"present": present, "past": "did", "future": "will"}[tense], "not", base]
    present = base if plural else third
    return {"present": [present], "past": [past], "future": ["will", base]}[tense]


def velan_verb(verb: Row, tense: str, plural: bool) -> str:
    """Return the Velan form of a verb: stem, tense, number of its subject."""
    return verb[-1] + TENSES[tense] + ("en" if plural else "")


class Grammar:
    """Draws sentence pairs; a seed determines the sequence.

    The only source of randomness is `random.Random(seed).random()`, which is the same on every
    machine and in every version of Python, unlike `choice` and `shuffle`.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def noun_phrase(
        self, nouns: Sequence[Row], case: str = "", modified: float = 0.0
    ) -> tuple[list[str], list[str], bool]:
        """Return a noun with determiner and adjectives in both languages, and if it is plural.

        `case` is the Velan ending of an object, and `modified` the probability of a phrase or
        clause that describes the noun.
        """
        noun, determiner = self._pick(nouns), self._pick(DETERMINERS)
        plural = self._chance(0.4)
        adjectives = [self._pick(ADJECTIVES)] if self._chance(0.4) else []
        if adjectives and self._chance(0.2):
            adjectives.append(self._pick([a for a in ADJECTIVES if a != adjectives[0]]))
        form = 1 if plural else 0  # its place in a row
        source = [english for english, _ in adjectives] + [noun[form]]
        article = determiner[form]
        if article == "a" and source[0][0] in "aeiou":
            article = "an"
        number = noun[-1] + ("i" if plural else "")
        target = [determiner[-1] + number + case, noun[-2] + number + case]
        target += [velan + number for _, velan in reversed(adjectives)]
        after, before = self._modifier(noun, plural) if self._chance(modified) else ([], [])
        return [article, *source, *after], before + target, plural

    def _modifier(self, noun: Row, plural: bool) -> tuple[list[str], list[str]]:
        """Return a description of a noun: English words after it, and Velan words before it."""
        if self._chance(0.5):
            preposition, postposition = self._pick(PREPOSITIONS)
            source, target, _ = self.noun_phrase(PLACES)
            return [preposition, *source], [*target, postposition]
        verb, tense = self._pick(TRANSITIVE), self._pick(("present", "past"))
        if noun in BEINGS and self._chance(0.6):  # the noun is the subject of the clause
            source, target, _ = self.noun_phrase(BEINGS + THINGS, OBJECT)
            source = [*english_verb(verb, tense, plural), *source]
        else:
            source, target, plural = self.noun_phrase(BEINGS)
            source += english_verb(verb, tense, plural)
        return ["which", *source], [*target, velan_verb(verb, tense, plural), "ke"]

    def _predicate(self) -> tuple[Row, list[str], list[str]]:
        """Return a verb with its objects: English words after it, Velan words before it."""
        kind = self._random()
        if kind < 0.2:
            return self._pick(INTRANSITIVE), [], []
        if kind < 0.8:
            source, target, _ = self.noun_phrase(BEINGS + THINGS, OBJECT, modified=0.35)
            return self._pick(TRANSITIVE), source, target
        source, target, _ = self.noun_phrase(THINGS, OBJECT)
        receiver, velan_receiver, _ = self.noun_phrase(BEINGS)
        verb = self._pick(DITRANSITIVE)
        return verb, [*source, "to", *receiver], [*velan_receiver, "ri", *target]

    def sentence(self) -> tuple[list[str], list[str]]:
        """Return one sentence: the English tokens and the Velan tokens."""
        subject, velan_subject, plural = self.noun_phrase(BEINGS, modified=0.3)
        verb, after, before = self._predicate()
        tense, negated = self._pick(tuple(TENSES)), self._chance(0.15)
        manner = self._pick(MANNERS) if self._chance(0.3) else ["", ""]
        time = self._pick(TIMES[tense]) if self._chance(0.35) else ["", ""]
        source = [*subject, *english_verb(verb, tense, plural, negated), *after, manner[0]]
        source = [time[0], *source] if self._chance(0.5) else [*source, time[0]]
        target = [time[1], *velan_subject, *before, manner[1]]
        target += [velan_verb(verb, tense, plural), "ne" if negated else ""]
        return [word for word in source if word] + ["."], [word for word in target if word] + ["."]

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Yield endless pairs, with tokens joined by spaces; English sentences do not repeat."""
        seen = set()
        while True:
            source, target = map(" ".join, self.sentence())
            fits = all(SHORTEST <= len(side.split()) <= LONGEST for side in (source, target))
            if fits and source not in seen:
                seen.add(source)
                yield source, target


def generate(seed: int, sizes: dict[str, int]) -> dict[str, list[str]]:
    """Return the tokenized lines of each file (`train.en`, ...). No sentence is in two splits."""
    pairs = Grammar(seed).sentences()
    files = {}
    for split, size in sizes.items():
        part = list(islice(pairs, size))
        files[f"{split}.{SOURCE}"] = [source for source, _ in part]
        files[f"{split}.{TARGET}"] = [target for _, target in part]
    return files


def detokenize(line: str) -> str:
    """Return a sentence without the space before its full stop."""
    return line[: -len(" .")] + "."


def build(work: Path, files: dict[str, list[str]]) -> dict[str, Counts]:
    """Write raw/ (without train), tok/ and the dictionaries to `work`; there is no BPE."""
    for name, lines in files.items():
        write_lines(work / "tok" / name, lines)
        if not name.startswith("train."):
            write_lines(work / "raw" / name, map(detokenize, lines))
    report(f"write {', '.join(files)}")
    texts = [work / "tok" / f"train.{language}" for language in (SOURCE, TARGET)]
    make_dictionary(texts, [work / "bin" / f"dict.{x}.txt" for x in (SOURCE, TARGET)])
    return {}


def main(argv: Sequence[str]) -> None:
    """Write and prepare the corpus; raise CommandError if --out has other content."""
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=SEED, default=1, metavar="N", help="default: %(default)s")
    for split, size in {"train": 8000, "valid": 500, "test": 500}.items():
        parser.add_argument(
            f"--{split}",
            type=at_least(1),
            default=size,
            metavar="N",
            help="pairs (default: %(default)s)",
        )
    args = parser.parse_args(argv)
    sizes = {split: getattr(args, split) for split in SPLITS}
    spec = make_data_spec("toy", SOURCE, TARGET, {"seed": args.seed, **sizes})
    files = generate(args.seed, sizes)
    texts = {name: "".join(f"{line}\n" for line in lines) for name, lines in files.items()}
    inputs = {name: sha256(text.encode()).hexdigest() for name, text in texts.items()}
    publish(args.out, {**spec, "inputs": inputs}, partial(build, files=files), args.overwrite)
    publish_binary(args.out, args.overwrite)


if __name__ == "__main__":
    run(main)
