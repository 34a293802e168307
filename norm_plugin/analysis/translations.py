"""Two runs on one test set: sacrebleu's paired tests on their translations.

These tests ask what another test set of the same kind would show for the *same two models*. They
say nothing about other seeds: for that, see :mod:`norm_plugin.analysis.stats`.
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

from norm_plugin.analysis.stats import LEVEL, holm
from norm_plugin.analysis.study import Study
from norm_plugin.commands.command_line import CommandError, read_json, read_lines
from norm_plugin.experiments.bleu import score_sacrebleu
from norm_plugin.experiments.kept import TRANSLATIONS, read_kept
from norm_plugin.experiments.metrics.bleu import reference_file, text_form
from norm_plugin.experiments.score import plain_references

RESAMPLES = 1000  # sacrebleu's own default for the bootstrap (Koehn 2004)
TRIALS = 10_000  # and for approximate randomization (Riezler and Maxwell 2005)

NO_TRANSLATIONS = "no translations kept"
NO_BASELINE = "the baseline has no such seed"
SHOWN = {True: "higher on this test set", False: "lower on this test set"}
NOT_SHOWN = "no difference shown"


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
    study: Study, references: References, resamples: int = RESAMPLES, trials: int = TRIALS
) -> pd.DataFrame:
    """Each run of each arm but the baseline against the baseline's run of the same seed.

    Args:
        resamples: of the bootstrap.
        trials: of approximate randomization.

    Returns:
        columns ``arm``, ``seed``, ``difference`` in BLEU, ``bootstrap_p``, ``randomization_p`` and
        each with ``_holm`` after Holm's correction over the rows, ``signature`` and ``verdict``: a
        difference is shown where both corrected p are below 5 %.

    Raises:
        CommandError: kept translations that are not those of the result, or references that the
            result was not scored against.
    """
    runs = study.runs.to_dict("records")
    texts = {
        run["seed"]: _translations(run, references) for run in runs if run["arm"] == study.baseline
    }
    rows = []
    for run in (run for run in runs if run["arm"] != study.baseline):
        ours, theirs = _translations(run, references), texts.get(run["seed"])
        row = {"arm": run["arm"], "seed": run["seed"]}
        if run["seed"] not in texts:
            row["verdict"] = NO_BASELINE
        elif ours is None or theirs is None:
            row["verdict"] = NO_TRANSLATIONS
        else:
            lines, lowercase = references.lines, references.lowercase
            row |= vars(paired_tests(ours, theirs, lines, lowercase, resamples, trials))
        rows.append(row)
    columns = ["arm", "seed", "difference", "bootstrap_p", "randomization_p", "signature"]
    table = pd.DataFrame(rows, columns=[*columns, "verdict"])
    tested = table["difference"].notna()
    for p in ("bootstrap_p", "randomization_p"):
        table.loc[tested, f"{p}_holm"] = holm(table.loc[tested, p].tolist())
    greatest = table.reindex(columns=["bootstrap_p_holm", "randomization_p_holm"]).max(
        axis="columns"
    )
    table["verdict"] = [
        (SHOWN[row["difference"] > 0] if p < LEVEL else NOT_SHOWN) if is_tested else row["verdict"]
        for row, p, is_tested in zip(table.to_dict("records"), greatest, tested)
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
