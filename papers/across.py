"""Comparisons that no study can declare: over several studies, over epochs, with diverged runs.

All of them are exploratory, and their p is not corrected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.config.studies import SCORE
from norm_lab.report.text import formatted, markdown, outcome_title
from norm_lab.study.comparable import TRAINING, check_same_data, check_settings_alike
from norm_lab.study.comparisons import higher_is_better, outcome_values
from norm_lab.study.significance import LEVEL, Comparison, compare_independent, compare_paired
from norm_lab.study.study import Study
from papers.findings import DECLARED, read_named, with_placement

JUMP = 0.3
"""A logged training loss that is above the mean of its neighbors by more bits is a jump."""


class AcrossStudies(NamedTuple):
    """A comparison of arms that stand in several studies.

    Attributes:
        title: what the table calls the difference.
        arms: the arm, by study; pre-norm if it names no placement.
        baselines: the baseline, by study.
    """

    title: str
    arms: dict[str, str]
    baselines: dict[str, str]
    outcome: str = SCORE


def declared_across_studies(name: str) -> Iterator[AcrossStudies]:
    """Yield the comparisons over several studies of a block of questions.yaml, scores first."""
    rows = DECLARED["across"][name]
    for outcome in (SCORE, *rows[0].get("also", ())):
        for row in rows:
            yield AcrossStudies(row["title"], row["arms"], row["baselines"], outcome)


def across_table(name: str, results: Path) -> str:
    """Return Markdown: one row per comparison over several studies."""
    rows = [across_row(each, results) for each in declared_across_studies(name)]
    return markdown(pd.DataFrame(rows).drop(columns="decided"))


def across_row(each: AcrossStudies, results: Path) -> dict[str, Any]:
    """Return a comparison over several studies as text, and whether p alone decides it."""
    test, n = compare_across(each, results)
    metric, (low, high) = read_named(next(iter(each.arms)), results).metric, test.interval
    ends = {"difference": test.mean, "difference_low": low, "difference_high": high}
    texts = formatted(pd.DataFrame([{**ends, "p": test.p}]), metric, each.outcome)
    return {
        "difference": each.title,
        "studies": ", ".join(f"`{study}`" for study in {**each.arms, **each.baselines}),
        "outcome": outcome_title(each.outcome, metric),
        "n": n,
        **dict(zip(("mean", "95 % interval", "p"), texts.iloc[0])),
        "test": test.test,
        "decided": test.p < LEVEL,
    }


def compare_across(each: AcrossStudies, results: Path) -> tuple[Comparison, str]:
    """Compare an arm with a baseline, each in one or more studies.

    If both sides name the same studies, their runs are paired by study and seed, and each study may
    have settings of its own. Otherwise they are independent samples, whose runs must have the same
    data and, but for the learning rate, the same settings of the training.

    Returns:
        the arm minus the baseline, and the seeds of each side as text; of paired seeds, one number.

    Raises:
        CommandError: the runs of independent samples differ in their data or settings.
    """
    sides = [side_runs(side, results) for side in (each.arms, each.baselines)]
    arm, baseline = (
        outcome_values(runs, each.outcome).set_axis([runs["study"], runs["seed"]]) for runs in sides
    )
    if each.arms.keys() == each.baselines.keys():
        differences = (arm - baseline).dropna()
        return compare_paired(differences.to_numpy()), str(len(differences))
    both = pd.concat(sides, ignore_index=True)
    check_same_data(both)
    check_settings_alike(both, TRAINING, vary=("optimization.lr",))
    test = compare_independent(arm.to_numpy(), baseline.to_numpy())
    return test, f"{len(arm)} and {len(baseline)}"


def side_runs(side: Mapping[str, str], results: Path) -> pd.DataFrame:
    """Return the runs of an arm, given its name in each study, with the column ``study``."""
    parts = []
    for name, arm in side.items():
        runs = read_named(name, results).runs
        parts.append(runs[runs["arm"] == with_placement(arm)].copy().assign(study=name))
    return pd.concat(parts, ignore_index=True)


# ---- over epochs ----------------------------------------------------------------------------


def epochs_table(name: str, results: Path) -> str:
    """Return Markdown: the difference in validation loss after some epochs, a row per study."""
    declared = DECLARED["epochs"][name]
    rows = []
    for study_name, (arm, baseline) in declared["pairs"].items():
        study = read_named(study_name, results)
        losses, others = (valid_losses(study, with_placement(side)) for side in (arm, baseline))
        differences = losses - others
        row: dict[str, Any] = {"study": f"`{study_name}`", "n": str(len(differences))}
        for epoch in declared["epochs"]:
            known = epoch in differences
            row[f"epoch {epoch}"] = f"{differences[epoch].mean():+.3f}" if known else ""
        rows.append(row)
    return markdown(pd.DataFrame(rows))


def valid_losses(study: Study, arm: str) -> pd.DataFrame:
    """Return the validation loss of an arm in bits: a row per seed, a column per epoch.

    It is the loss of the training, with label smoothing, as the least validation loss of a table.
    """
    curves = with_arms(study)
    shown = curves[(curves["subset"] == "valid") & (curves["arm"] == arm)]
    return shown.pivot(index="seed", columns="epoch", values="loss")


def with_arms(study: Study) -> pd.DataFrame:
    """Return the curves of a study with the column ``arm``, those of diverged runs as well."""
    names = pd.concat([study.runs, study.failures])[["norm", "seed", "arm"]]
    return study.curves.merge(names, on=["norm", "seed"], how="left", validate="many_to_one")


# ---- diverged runs --------------------------------------------------------------------------


def stability_table(name: str, results: Path) -> str:
    """Return Markdown: per arm, how many runs diverged, and how many have jumps of the loss."""
    study = read_named(name, results)
    curves, after = with_arms(study), DECLARED["stability"][name]
    logged = curves[(curves["subset"] == "train_inner") & (curves["updates"] > after)]
    rows = []
    for arm in study.arms:
        diverged = int((study.failures["arm"] == arm).sum())
        finished = study.runs.loc[study.runs["arm"] == arm, "seed"].tolist()
        losses = dict(list(logged[logged["arm"] == arm].groupby("seed")["loss"]))
        heights = [heights_of_jumps(losses[seed]) for seed in finished]
        jumps = [height for each in heights for height in each]
        rows.append(
            {
                "arm": f"`{arm}`",
                "runs": str(diverged + len(finished)),
                "diverged": str(diverged),
                "of the others, with jumps": f"{sum(map(bool, heights))} of {len(finished)}",
                "heights, bits": f"{min(jumps):.1f} to {max(jumps):.1f}" if jumps else "-",
            }
        )
    return markdown(pd.DataFrame(rows))


def heights_of_jumps(losses: pd.Series) -> list[float]:
    """Return how far losses are above the mean of the two neighbors, if by more than JUMP."""
    above = losses - (losses.shift(1) + losses.shift(-1)) / 2
    return above[above > JUMP].tolist()


def seeds_ahead(name: str, arm: str, baseline: str, results: Path) -> tuple[int, int]:
    """Count the seeds with which an arm is ahead, and all seeds; a diverged run is behind."""
    study = read_named(name, results)
    runs = study.runs.assign(value=outcome_values(study.runs, SCORE))
    values = runs.pivot(index="seed", columns="arm", values="value")
    difference = values[arm] - values[baseline]
    ahead = difference > 0 if higher_is_better(study.runs, SCORE) else difference < 0
    return int(ahead.sum()), len(difference)
