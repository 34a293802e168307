"""Compare the translations of two runs by sacrebleu's approximate randomization test.

docs/statistics.md says what it shows. sacrebleu's bootstrap test is not used, because its p is
about half of a two-sided one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from norm_lab.metrics.bleu import (
    plain_references,
    reference_file,
    sacrebleu_tokenizer,
    score_sacrebleu,
    text_form,
)
from norm_lab.study.significance import holm, verdict
from norm_lab.study.study import Study
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json, read_lines

TRIALS = 10_000  # sacrebleu's own default (Riezler and Maxwell 2005)
NO_TRANSLATIONS = "no translations kept"
NO_BASELINE = "the baseline has no such seed"


class References(NamedTuple):
    """The reference translations in plain text, whether to compare without case, the language."""

    lines: Sequence[str]
    lowercase: bool
    language: str = ""


def read_references(study: Study, data: Path) -> References:
    """Return the references of the test set in a prepared corpus.

    Raises:
        CommandError: the corpus is not that of the study, or cannot be read.
    """
    manifest = read_json(data / "manifest.json")
    wanted, checksum = study.runs["data.checksum"].iloc[0], manifest.get("checksum")
    if checksum != wanted:
        raise CommandError(
            f"{data} has the data checksum {checksum}, but the results have {wanted}; give the "
            "corpus on which the runs were trained"
        )
    form = text_form(manifest)
    lines = read_lines(reference_file(data, study.runs["split"].iloc[0], manifest["target"]))
    return References(plain_references(lines, form), form.lowercase, form.language)


def compare_translations(
    study: Study, references: References, trials: int = TRIALS
) -> pd.DataFrame:
    """Compare each run of the other arms with the baseline's run of the same seed.

    The control of a row compares its seed with the next seed of the same arm that has translations;
    the first seed follows the last.

    Returns:
        columns ``arm``, ``seed``, ``difference`` in BLEU, ``p``, ``p_holm`` after Holm's correction
        over the rows, ``control_p``, ``signature`` and ``verdict``; NaN if undefined.

    Raises:
        CommandError: the stored translations or the references do not belong to a result.
    """
    texts = {
        (run["arm"], run["seed"]): _translations(run, references)
        for run in study.runs.to_dict("records")
    }
    rows: list[dict[str, Any]] = []
    for (arm, seed), lines in texts.items():
        if arm == study.baseline:
            continue
        row: dict[str, Any] = {"arm": arm, "seed": seed}
        baseline = texts.get((study.baseline, seed))
        if (study.baseline, seed) not in texts:
            row["verdict"] = NO_BASELINE
        elif lines is None or baseline is None:
            row["verdict"] = NO_TRANSLATIONS
        else:
            row |= randomization_test(lines, baseline, references, trials)._asdict()
            own_texts = [(at, kept) for (name, at), kept in texts.items() if name == arm and kept]
            place = own_texts.index((seed, lines))
            control, other = (own_texts[place + 1 :] + own_texts)[0]
            if control != seed:
                row["control_p"] = randomization_test(lines, other, references, trials).p
        rows.append(row)
    columns = ["arm", "seed", "difference", "p", "p_holm", "control_p"]
    table = pd.DataFrame(rows, columns=[*columns, "signature", "verdict"])
    # no row has a verdict yet if all can be tested, and pandas would take the column for numbers
    table["verdict"] = table["verdict"].astype(object)
    table["p_holm"] = holm(table["p"].astype(float).tolist())
    for index, row in table[table["p"].notna()].iterrows():
        tested = verdict(row["difference"], row["p_holm"], higher_is_better=True)
        table.loc[index, "verdict"] = tested
    return table


def _translations(run: Mapping[str, Any], references: References) -> list[str] | None:
    """Return a run's stored translations; CommandError if they do not give the result's score."""
    lines = run.get("translations")
    if not isinstance(lines, list):
        return None
    if len(lines) != len(references.lines):
        raise CommandError(
            f"{run['norm']} seed {run['seed']} has {len(lines)} stored translations, but there are "
            f"{len(references.lines)} references"
        )
    stored = run["scores.sacrebleu.score"]
    score = score_sacrebleu(lines, *references)["score"]
    if score != stored:
        raise CommandError(
            f"the stored translations of {run['norm']} seed {run['seed']} give sacrebleu {score}, "
            f"but its result has {stored}: the references have changed since it was scored"
        )
    return lines


class PairedScores(NamedTuple):
    """BLEU of one system minus that of another, its two-sided p, and sacrebleu's signature."""

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
    # importing fairseq would let sacrebleu's log messages on each test through
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    kept, lowercase, language = references
    tokenizer = sacrebleu_tokenizer(language)
    metrics = {"BLEU": BLEU(lowercase, tokenize=tokenizer, references=[list(kept)])}
    test = PairedTest(systems, metrics, None, test_type="ar", n_samples=trials)
    results: tuple[dict[str, Any], dict[str, Any]] = test()
    signature, scores = results
    of_baseline, of_system = scores["BLEU"]
    # sacrebleu does not count ties, so two systems that are equal, or differ in one sentence, would
    # get its smallest p, although no test can distinguish them. Of the 2^d ways to exchange the d
    # sentences that differ, two give the observed difference: exchanging none of them, or all.
    different = sum(one != other for one, other in zip(system, baseline))
    least = 1.0 if of_system.score == of_baseline.score else min(1.0, 2.0 ** (1 - different))
    p = max(float(of_system.p_value), least)
    return PairedScores(of_system.score - of_baseline.score, p, str(signature["BLEU"]))
