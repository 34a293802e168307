"""The settings against the baseline on the sentences of the test set, one seed at a time.

These tests hold two trained models fixed and ask what other sentences of the same kind would show.
Two seeds of one norm may differ as clearly: for what other seeds would show, see seeds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from norm_plugin.analysis.seeds import LEVEL, holm
from norm_plugin.analysis.study import Setting, Study
from norm_plugin.analysis.translations import RESAMPLES, TRIALS, PairedScores, paired_tests
from norm_plugin.commands.command_line import CommandError, read_json, read_lines
from norm_plugin.experiments.bleu import score_sacrebleu
from norm_plugin.experiments.kept import TRANSLATIONS, read_kept
from norm_plugin.experiments.metrics.bleu import reference_file, text_form
from norm_plugin.experiments.results import Result
from norm_plugin.experiments.score import plain_references

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


@dataclass(frozen=True)
class PairedRow:
    """One seed of a setting against the same seed of the baseline.

    Attributes:
        scores: None where nothing could be tested; ``why`` then says why.
        corrected: p of the bootstrap and of approximate randomization, each after Holm's
            correction over the rows of the table.
    """

    setting: Setting
    seed: int
    scores: PairedScores | None = None
    why: str = ""
    corrected: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """What may be said: a difference is shown where both corrected p are below 5 %."""
        if self.scores is None or self.corrected is None:
            return self.why
        if max(self.corrected) >= LEVEL:
            return NOT_SHOWN
        return SHOWN[self.scores.difference > 0]


def read_references(study: Study, data: Path) -> References:
    """The references of the test set from a prepared corpus.

    Raises:
        CommandError: the corpus is not that of the study, or cannot be read.
    """
    manifest = read_json(data / "manifest.json")
    wanted, found = study.runs[0]["data"]["checksum"], manifest.get("checksum")
    if found != wanted:
        raise CommandError(
            f"{data} has the data checksum {found}, and the results have {wanted}; give the "
            "corpus that the runs were trained on"
        )
    form = text_form(manifest)
    lines = read_lines(reference_file(data, study.runs[0]["split"], manifest["target"]))
    return References(plain_references(lines, form), form.lowercase)


def compare_translations(
    study: Study, references: References, resamples: int = RESAMPLES, trials: int = TRIALS
) -> list[PairedRow]:
    """A row for each run of each setting but the baseline.

    Args:
        resamples: of the bootstrap.
        trials: of approximate randomization.

    Raises:
        CommandError: kept translations that are not those of the result, or references that the
            result was not scored against.
    """
    base = {run["seed"]: _translations(run, references) for run in study.baseline.runs}
    rows = []
    for setting in study.settings[1:]:
        for run in setting.runs:
            ours, seed = _translations(run, references), run["seed"]
            theirs = base.get(seed)
            if seed not in base:
                rows.append(PairedRow(setting, seed, why=NO_BASELINE))
            elif ours is None or theirs is None:
                rows.append(PairedRow(setting, seed, why=NO_TRANSLATIONS))
            else:
                lines, lowercase = references.lines, references.lowercase
                tests = paired_tests(ours, theirs, lines, lowercase, resamples, trials)
                rows.append(PairedRow(setting, seed, tests))
    scores = [row.scores for row in rows if row.scores]
    corrected = iter(
        zip(
            holm([one.bootstrap_p for one in scores]),
            holm([one.randomization_p for one in scores]),
        )
    )
    return [replace(row, corrected=next(corrected)) if row.scores else row for row in rows]


def _translations(run: Result, references: References) -> list[str] | None:
    """What is kept of a run; its score with these references has to be that of the result."""
    text = read_kept(run["folder"], run, TRANSLATIONS)
    if text is None:
        return None
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(references.lines):
        raise CommandError(
            f"{run['norm']} seed {run['seed']} has {len(lines)} translations kept, and there are "
            f"{len(references.lines)} references"
        )
    stored = run["scores"]["sacrebleu"]["score"]
    found = score_sacrebleu(lines, references.lines, references.lowercase)["score"]
    if found != stored:
        raise CommandError(
            f"the kept translations of {run['norm']} seed {run['seed']} give {found} of sacrebleu, "
            f"and its result has {stored}: the references are others than when it was scored"
        )
    return lines
