"""Two runs on one test set: sacrebleu's paired tests on their translations.

These tests ask what another test set of the same kind would show for the *same two models*. They
say nothing about other seeds: for that, see :mod:`norm_plugin.analysis.seeds`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result

RESAMPLES = 1000  # sacrebleu's own default for the bootstrap (Koehn 2004)
TRIALS = 10_000  # and for approximate randomization (Riezler and Maxwell 2005)


@dataclass(frozen=True)
class PairedScores:
    """One system against the baseline on one test set.

    Attributes:
        difference: BLEU of the system less BLEU of the baseline.
        bootstrap_p: of the paired bootstrap.
        randomization_p: of approximate randomization.
        signature: sacrebleu's, of the metric and the tests.
    """

    difference: float
    bootstrap_p: float
    randomization_p: float
    signature: str


def paired_tests(
    system: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    resamples: int = RESAMPLES,
    trials: int = TRIALS,
) -> PairedScores:
    """Both of sacrebleu's paired tests of two systems' translations, a line a sentence.

    Raises:
        ValueError: the numbers of lines differ.
    """
    counts = {len(system), len(baseline), len(references)}
    if len(counts) > 1:
        raise ValueError(
            f"{len(system)} and {len(baseline)} translations of {len(references)} sentences; "
            "compare runs on one test set"
        )
    systems: list[tuple[str, Sequence[str]]] = [
        ("baseline", list(baseline)),
        ("system", list(system)),
    ]
    # Importing fairseq lets its reports on every test through
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    metrics = {"BLEU": BLEU(lowercase=lowercase, references=[list(references)])}
    found = {}
    signatures = []
    for kind, samples in (("bs", resamples), ("ar", trials)):
        test = PairedTest(systems, metrics, None, test_type=kind, n_samples=samples)
        signature, scores = test()
        found[kind] = [_result(entry) for entry in scores["BLEU"]]
        signatures.append(str(signature["BLEU"]))
    theirs, ours = found["ar"]
    # sacrebleu counts the samples that lie beyond the difference, and ties do not: it gives two
    # equal systems, or two that differ in a sentence, its smallest p. No test tells those apart.
    equal = ours.score == theirs.score
    bootstrap, randomization = (1.0 if equal else found[kind][1].p_value for kind in ("bs", "ar"))
    assert bootstrap is not None and randomization is not None  # a system has p, the baseline none
    return PairedScores(
        ours.score - theirs.score,
        float(bootstrap),
        max(float(randomization), least_randomization_p(system, baseline)),
        "; ".join(signatures),
    )


def least_randomization_p(system: Sequence[str], baseline: Sequence[str]) -> float:
    """The smallest p of a randomization test that counts ties.

    Of the 2^d ways to exchange the d sentences that differ, two give the difference itself: none
    of them exchanged, and all.
    """
    different = sum(ours != theirs for ours, theirs in zip(system, baseline))
    return min(1.0, 2.0 ** (1 - different))


def _result(entry: str | Result) -> Result:
    """An entry of sacrebleu's table of scores; those of the column of names are strings."""
    assert isinstance(entry, Result), entry
    return entry
