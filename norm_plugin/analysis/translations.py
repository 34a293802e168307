"""Compares the translations of two runs by sacrebleu's approximate randomization test.

The test generalizes to other test sets for the *same two models*, not to other seeds; for these,
see :mod:`norm_plugin.analysis.stats`. As a control, the same test compares two seeds of one norm:
if its p is small too, the difference is one between models and need not be one between norms.

sacrebleu's bootstrap test is not used, since its p is about half of a two-sided one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from norm_plugin.analysis.stats import holm, verdict
from norm_plugin.analysis.study import Study
from norm_plugin.commands.command_line import CommandError, read_json, read_lines
from norm_plugin.experiments.metrics.bleu import (
    plain_references,
    reference_file,
    score_sacrebleu,
    text_form,
)
from norm_plugin.experiments.results import TRANSLATIONS, read_kept

TRIALS = 10_000  # sacrebleu's own default (Riezler and Maxwell 2005)
NO_TRANSLATIONS = "no translations kept"
NO_BASELINE = "the baseline has no such seed"


@dataclass(frozen=True)
class References:
    """The reference translations.

    Attributes:
        lines: plain text, one line per sentence.
        lowercase: compare without case.
    """

    lines: Sequence[str]
    lowercase: bool


def read_references(study: Study, data: Path) -> References:
    """The references of the test set in a prepared corpus.

    Raises:
        CommandError: the corpus is not that of the study, or cannot be read.
    """
    manifest = read_json(data / "manifest.json")
    wanted, checksum = study.runs["data.checksum"].iloc[0], manifest.get("checksum")
    if checksum != wanted:
        raise CommandError(
            f"{data} has the data checksum {checksum}, and the results have {wanted}; give the "
            "corpus that the runs were trained on"
        )
    form = text_form(manifest)
    lines = read_lines(reference_file(data, study.runs["split"].iloc[0], manifest["target"]))
    return References(plain_references(lines, form), form.lowercase)


def compare_translations(
    study: Study, references: References, trials: int = TRIALS
) -> pd.DataFrame:
    """Compare each run of the other arms with the baseline's run of the same seed.

    The control of a row compares its seed with the next seed of the same arm that has translations;
    the first seed follows the last.

    Args:
        trials: the number of trials of approximate randomization.

    Returns:
        columns ``arm``, ``seed``, ``difference`` in BLEU, ``p``, ``p_holm`` after Holm's correction
        over the rows, ``control_p``, ``signature`` and ``verdict``; NaN if undefined.

    Raises:
        CommandError: the kept translations or the references do not belong to a result.
    """
    texts: dict[str, dict[int, list[str] | None]] = {}
    for run in study.runs.to_dict("records"):
        texts.setdefault(run["arm"], {})[run["seed"]] = _translations(run, references)
    rows: list[dict[str, Any]] = []
    for arm, by_seed in texts.items():
        if arm == study.baseline:
            continue
        with_texts = [seed for seed, lines in by_seed.items() if lines is not None]
        controls = dict(zip(with_texts, [*with_texts[1:], *with_texts[:1]]))
        tests: dict[frozenset[int], PairedScores] = {}
        for seed, lines in by_seed.items():
            row: dict[str, Any] = {"arm": arm, "seed": seed}
            baseline = texts[study.baseline].get(seed)
            if seed not in texts[study.baseline]:
                row["verdict"] = NO_BASELINE
            elif lines is None or baseline is None:
                row["verdict"] = NO_TRANSLATIONS
            else:
                row |= vars(randomization_test(lines, baseline, references, trials))
                other = by_seed[controls[seed]]
                if controls[seed] != seed and other is not None:
                    pair = frozenset((seed, controls[seed]))
                    tests[pair] = tests.get(pair) or randomization_test(
                        lines, other, references, trials
                    )
                    row["control_p"] = tests[pair].p
            rows.append(row)
    columns = ["arm", "seed", "difference", "p", "p_holm", "control_p"]
    table = pd.DataFrame(rows, columns=[*columns, "signature", "verdict"])
    table["p_holm"] = holm(table["p"].astype(float).tolist())
    table["verdict"] = [
        row["verdict"]
        if pd.isna(row["p"])
        else verdict(row["difference"], row["p_holm"], higher_is_better=True)
        for row in table.to_dict("records")
    ]
    return table


def _translations(run: Mapping[str, Any], references: References) -> list[str] | None:
    """The kept translations of a run; CommandError if their score is not that of the result."""
    text = read_kept(run, TRANSLATIONS)
    if text is None:
        return None
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(references.lines):
        raise CommandError(
            f"{run['norm']} seed {run['seed']} has {len(lines)} kept translations, and there are "
            f"{len(references.lines)} references"
        )
    stored = run["scores.sacrebleu.score"]
    score = score_sacrebleu(lines, references.lines, references.lowercase)["score"]
    if score != stored:
        raise CommandError(
            f"the kept translations of {run['norm']} seed {run['seed']} give {score} of sacrebleu, "
            f"and its result has {stored}: the references have changed since it was scored"
        )
    return lines


@dataclass(frozen=True)
class PairedScores:
    """The comparison of two systems on one test set.

    Attributes:
        difference: BLEU of the first minus BLEU of the second.
        p: the two-sided p value of approximate randomization.
        signature: sacrebleu's signature of the metric and the test.
    """

    difference: float
    p: float
    signature: str


def randomization_test(
    system: Sequence[str],
    baseline: Sequence[str],
    references: References,
    trials: int = TRIALS,
) -> PairedScores:
    """Run sacrebleu's approximate randomization test on the translations of two systems."""
    systems: list[Any] = [("baseline", list(baseline)), ("system", list(system))]
    # importing fairseq lets sacrebleu's log messages on each test through
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    metrics = {"BLEU": BLEU(lowercase=references.lowercase, references=[list(references.lines)])}
    test = PairedTest(systems, metrics, None, test_type="ar", n_samples=trials)
    results: tuple[dict[str, Any], dict[str, Any]] = test()
    signature, scores = results
    theirs, ours = scores["BLEU"]
    # sacrebleu does not count ties, so two systems that are equal, or differ in one sentence, would
    # get its smallest p, although no test can distinguish them.
    least = 1.0 if ours.score == theirs.score else least_randomization_p(system, baseline)
    p = max(float(ours.p_value), least)
    return PairedScores(ours.score - theirs.score, p, str(signature["BLEU"]))


def least_randomization_p(system: Sequence[str], baseline: Sequence[str]) -> float:
    """The smallest possible p of a randomization test that counts ties.

    Of the 2^d ways to exchange the d sentences that differ, two give the observed difference:
    exchanging none of them, or all.
    """
    different = sum(ours != theirs for ours, theirs in zip(system, baseline))
    return min(1.0, 2.0 ** (1 - different))
