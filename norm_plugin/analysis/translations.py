"""Two runs on one test set: approximate randomization of their translations, by sacrebleu.

The test asks what another test set of the same kind would show for the *same two models*. It says
nothing about other seeds: for that, see :mod:`norm_plugin.analysis.stats`. The control beside it is
the same test of two seeds of one norm: where its p is small too, the test tells models apart and
not norms.

sacrebleu's bootstrap is not used: its p is about half of a two-sided one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result

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
    """What translations are compared with.

    Attributes:
        lines: plain text, a line a sentence.
        lowercase: compare without case.
    """

    lines: Sequence[str]
    lowercase: bool


def read_references(study: Study, data: Path) -> References:
    """The references of the test set from a prepared corpus.

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
    """Each run of each arm but the baseline against the baseline's run of the same seed.

    The control of a row is the test of two seeds of its arm: of its own seed and of the next one
    with translations, the first one after the last.

    Args:
        trials: of approximate randomization.

    Returns:
        columns ``arm``, ``seed``, ``difference`` in BLEU, ``p``, ``p_holm`` after Holm's correction
        over the rows, ``control_seed`` and ``control_p``, ``signature`` and ``verdict``. What there
        is not is NaN.

    Raises:
        CommandError: kept translations that are not those of the result, or references that the
            result was not scored against.
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
                    row |= {"control_seed": controls[seed], "control_p": tests[pair].p}
            rows.append(row)
    columns = ["arm", "seed", "difference", "p", "p_holm", "control_seed", "control_p"]
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
    """What is kept of a run; its score with these references has to be that of the result."""
    text = read_kept(run, TRANSLATIONS)
    if text is None:
        return None
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(references.lines):
        raise CommandError(
            f"{run['norm']} seed {run['seed']} has {len(lines)} translations kept, and there are "
            f"{len(references.lines)} references"
        )
    stored = run["scores.sacrebleu.score"]
    score = score_sacrebleu(lines, references.lines, references.lowercase)["score"]
    if score != stored:
        raise CommandError(
            f"the kept translations of {run['norm']} seed {run['seed']} give {score} of sacrebleu, "
            f"and its result has {stored}: the references are others than when it was scored"
        )
    return lines


@dataclass(frozen=True)
class PairedScores:
    """One system against another on one test set.

    Attributes:
        difference: BLEU of the first less BLEU of the second.
        p: of approximate randomization, two-sided.
        signature: sacrebleu's, of the metric and the test.
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
    """sacrebleu's approximate randomization of two systems' translations, a line a sentence.

    Raises:
        ValueError: the numbers of lines differ.
    """
    counts = {len(system), len(baseline), len(references.lines)}
    if len(counts) > 1:
        raise ValueError(
            f"{len(system)} and {len(baseline)} translations of {len(references.lines)} sentences; "
            "compare runs on one test set"
        )
    systems: list[tuple[str, Sequence[str]]] = [
        ("baseline", list(baseline)),
        ("system", list(system)),
    ]
    # Importing fairseq lets its reports on every test through
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    metrics = {"BLEU": BLEU(lowercase=references.lowercase, references=[list(references.lines)])}
    test = PairedTest(systems, metrics, None, test_type="ar", n_samples=trials)
    signature, scores = test()
    theirs, ours = (_result(entry) for entry in scores["BLEU"])
    assert ours.p_value is not None  # the baseline has none
    # sacrebleu counts the samples that lie beyond the difference, and ties do not: it gives two
    # equal systems, or two that differ in a sentence, its smallest p. No test tells those apart.
    least = 1.0 if ours.score == theirs.score else least_randomization_p(system, baseline)
    p = max(float(ours.p_value), least)
    return PairedScores(ours.score - theirs.score, p, str(signature["BLEU"]))


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
