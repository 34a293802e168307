"""The rule for a verdict on what a paper says.

An experiment has the paper's setting, ours, and whether they are the same. What was measured gives
an :class:`Outcome`, and the two together give the verdict: only the paper's own setting can
reproduce or contradict. Statements that hold in any setting (lemmas, bounds) and sentences that can
be checked against the paper's own tables and equations have verdicts of their own, so that they are
counted apart.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Outcome(Enum):
    """What a measurement says of a claim."""

    AGREES = "the stated effect is decided"
    OPPOSITE = "the opposite effect is decided, or the stated number or bound is excluded"
    ABSENT = "the interval lies within the margin of the row, which excludes a larger effect"
    OPEN = "neither"
    MIXED = "parts of it have different outcomes"


UNDECIDED, MIXED = "undecided", "mixed"
RULE = {
    (Outcome.AGREES, True): "reproduced",
    (Outcome.OPPOSITE, True): "contradicted",
    (Outcome.ABSENT, True): "not reproduced",
    (Outcome.AGREES, False): "as the paper, here",
    (Outcome.OPPOSITE, False): "differs here",
    (Outcome.ABSENT, False): "not seen here",
}
"""The verdict on an experiment, by its outcome and whether our setting is the paper's."""
IN = {True: "in the setting that the paper states", False: "in another setting"}
EXPERIMENTS = {
    **{verdict: f"{outcome.value}, {IN[same]}" for (outcome, same), verdict in RULE.items()},
    MIXED: "the settings, or the parts of the claim, have different verdicts",
    UNDECIDED: "measured, but p or the interval does not decide, or the comparison cannot",
    "not run": "not run or not measured here",
}
STATEMENTS = {
    "holds": "a lemma, a theorem, an equation or a bound holds in everything measured",
    "holds in part": "a part of it holds, or it holds in a part of the models",
    "fails": "it does not hold in anything measured",
    "not measured": "not measured here",
}
SENTENCES = {
    "right": "a sentence agrees with the paper's own tables",
    "partly right": "a part of the sentence agrees with them",
    "wrong": "a misprint, a step of a proof, or a sentence that disagrees with them",
}
OTHERS = {
    "implemented": "a definition or an algorithm, compared with its equations in float64 by tests",
    "no claim": "a picture, a notation, a setting, a step of a proof, or a score that is cited",
}
KINDS = {
    "experiments": EXPERIMENTS,
    "statements of theory": STATEMENTS,
    "sentences, proofs and misprints": SENTENCES,
    "others": OTHERS,
}
"""The verdicts of each kind of row, with their meaning."""


def on_experiment(outcome: Outcome, same_setting: bool) -> str:
    """Return the verdict on one measurement of an experiment."""
    if outcome == Outcome.MIXED:
        return MIXED
    return RULE.get((outcome, same_setting), UNDECIDED)


def on_claim(verdicts: Collection[str]) -> str:
    """Return the verdict on a claim that was measured several times."""
    return next(iter(verdicts)) if len(set(verdicts)) == 1 else MIXED


def on_statement(outcomes: Collection[Outcome]) -> str:
    """Return the verdict on a statement of theory, given the outcomes of its measurements."""
    if set(outcomes) == {Outcome.AGREES}:
        return "holds"
    if set(outcomes) == {Outcome.OPPOSITE}:
        return "fails"
    return "not measured" if set(outcomes) == {Outcome.OPEN} else "holds in part"
