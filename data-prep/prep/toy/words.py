"""The words of the toy corpus, English and Velan, with what their inflection depends on."""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """English singular and plural; Velan stem and gender vowel."""

    singular: str
    plural: str
    stem: str
    gender: str


class Verb(NamedTuple):
    """English base form, third person and past; Velan stem."""

    base: str
    third: str
    past: str
    stem: str


class Determiner(NamedTuple):
    """English form before a singular and before a plural; Velan stem."""

    singular: str
    plural: str
    stem: str


def _rows(table: str) -> list[list[str]]:
    return [row.split() for row in table.strip().splitlines()]


BEINGS = [
    Noun(*row)
    for row in _rows("""
        dog dogs kelod o
        cat cats mirk a
        bird birds sifel u
        horse horses tarpan o
        girl girls lumin a
        boy boys dorik o
        woman women halen a
        man men borut o
        child children pinel u
        teacher teachers sodar u
        farmer farmers grenok o
        doctor doctors medil a
        sailor sailors navor u
        painter painters kolit a
        singer singers melod a
        neighbour neighbours viszen o
        friend friends amerl u
        king kings regol u
    """)
]
THINGS = [
    Noun(*row)
    for row in _rows("""
        book books libet a
        letter letters skrip u
        apple apples pomer a
        cup cups kalik o
        chair chairs sedul u
        hat hats kapor o
        boat boats barken a
        lamp lamps luker u
        stone stones petrok o
        flower flowers florin a
        key keys klavut u
        basket baskets korbel o
        coat coats mantil a
        picture pictures bildur o
        wheel wheels rotan u
        drum drums tamber a
    """)
]
PLACES = [
    Noun(*row)
    for row in _rows("""
        house houses domar a
        tree trees arbok o
        river rivers fluvin u
        garden gardens jardel o
        bridge bridges pontur u
        tower towers turil a
    """)
]
DETERMINERS = [
    Determiner(*row)
    for row in _rows("""
        the the t
        a some n
        this these k
        that those v
        my my mer
        your your zel
        our our nor
    """)
]
# Per table: English, Velan.
ADJECTIVES = _rows("""
    old ves
    small pet
    big gran
    red rus
    green verd
    happy felik
    quiet sil
    young jun
    clever sapin
    beautiful belor
    tired lasin
    strong fort
""")
PREPOSITIONS = _rows("""
    near apu
    behind deru
    under subu
    above supru
    beside ladu
""")
MANNERS = _rows("""
    slowly lente
    quickly rapide
    often ofte
    again retre
    happily felike
    quietly sile
    together kune
""")
# Tense: time words that go with it.
TIMES = {
    "present": _rows("today hodie\nnow nune"),
    "past": _rows("yesterday ieri\nearlier prime"),
    "future": _rows("tomorrow kras\nsoon balde"),
}
TENSES = {"present": "ar", "past": "ir", "future": "ur"}
TRANSITIVE = [
    Verb(*row)
    for row in _rows("""
        see sees saw pal
        find finds found trov
        hold holds held ten
        paint paints painted kolor
        love loves loved amik
        hear hears heard aud
        carry carries carried port
        follow follows followed sek
        watch watches watched gard
        remember remembers remembered memor
        draw draws drew desin
        help helps helped adjun
    """)
]
INTRANSITIVE = [
    Verb(*row)
    for row in _rows("""
        sleep sleeps slept dorm
        sing sings sang kant
        walk walks walked mars
        laugh laughs laughed rid
        wait waits waited tard
        swim swims swam nat
    """)
]
DITRANSITIVE = [
    Verb(*row)
    for row in _rows("""
        give gives gave don
        show shows showed mostr
        send sends sent mand
        bring brings brought fer
    """)
]
