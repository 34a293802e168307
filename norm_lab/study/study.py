"""The runs of one comparison as a table, each with its arm.

An arm is a norm with its options and a placement. Its runs differ in their seed only. A run that
failed or diverged has no result, but has a row in the table of failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from norm_lab.config.studies import MINUS, SCORE, PrimaryComparison, StudyFile, check_study, terms
from norm_lab.metrics import Metric, find_metric
from norm_lab.results.provenance import short_commit
from norm_lab.results.table import Results
from norm_lab.run.record import Value
from norm_lab.study.arms import ARM_COLUMNS, arm_of, name_arms, names_in_files, parts_of_arm
from norm_lab.study.comparable import (
    TRAINING,
    check_alike,
    check_same_data,
    check_same_sources,
    check_settings_alike,
)
from norm_lab.study.comparisons import Comparisons
from norm_lab.study.training_loss import training_loss
from norm_plugin.io.command_line import CommandError

OPTIONAL = (
    *("git.commit", "git.dirty", "date", "differs", "run.fold", "data.training_pairs"),
    *("training.seconds", "training.updates_per_second", "training.peak_memory"),
)
"""Columns that are added if no result has them."""
DEFAULT_BASELINE = "layernorm"
SAME_SPEED = 1.1
"""The speeds of two seeds of an arm differ by less than this factor on an idle machine."""
ALIKE_WITHOUT_NORMS = ("pre", "post")
"""Placements that are equal for a model without norms: ``x + f(x)``."""


@dataclass(frozen=True)
class Study:
    """The runs of one comparison.

    Attributes:
        common: the settings that differ from the experiment's and are equal in all runs.
        omitted: the keys of settings that the names of arms omit.
        runs: the table of :func:`read_results` with the columns ``arm``, the name that is shown,
            ``short``, the name without the placement, and ``id``, the name without labels; sorted
            by arm and seed. ``train_loss`` is that of :func:`training_loss`.
        curves: the table of :func:`read_curves`.
        failures: the table of :attr:`Results.failures` with the columns ``arm``, ``short``, ``id``
            and ``placement``.
        baseline: the arm with which the others are compared; it comes first.
        primary: the comparisons that the study declares, by the names of arms.
        vary: keys in which the arms may differ, because each has a value of its own.
        missing_seeds: the seeds that the study declares, but with which nothing, or an arm of a
            declared comparison, was not run.
        trained: the updates over which ``train_loss`` is a mean: ``updates 901 to 1,000``.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    failures: pd.DataFrame
    baseline: str
    common: dict[str, Value] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()
    primary: tuple[PrimaryComparison, ...] = ()
    vary: tuple[str, ...] = ()
    missing_seeds: tuple[int, ...] = ()
    trained: str = ""

    @property
    def arms(self) -> list[str]:
        """The arms with a result, the baseline first."""
        return list(dict.fromkeys(self.runs["arm"]))

    @property
    def failed_arms(self) -> list[str]:
        """The arms without any result."""
        return sorted(set(self.failures["arm"]) - set(self.runs["arm"]))

    @property
    def names(self) -> list[str]:
        """All arms; those without a result come last."""
        return [*self.arms, *self.failed_arms]

    @cached_property
    def placements(self) -> dict[str, str]:
        """The placement of each arm; the baseline comes first, arms without a result last."""
        both = pd.concat([self.runs, self.failures])
        return dict(zip(both["arm"], both["placement"]))

    @cached_property
    def short_names(self) -> dict[str, str]:
        """The name of each arm without its placement."""
        both = pd.concat([self.runs, self.failures])
        return dict(zip(both["arm"], both["short"]))

    def shown(self, side: str) -> str:
        """Return an arm, or the difference of two, as pages name it.

        A placement that all arms share is left out.
        """
        names = {} if len({*self.placements.values()}) > 1 else self.short_names
        return MINUS.join(names.get(name, name) for name in terms(side))

    def by_placement(self, table: pd.DataFrame) -> pd.DataFrame:
        """Sort a table with a column ``arm`` by placement, with that of the baseline first."""
        order = list(dict.fromkeys(self.placements.values()))
        place = table["arm"].map(self.placements).map(order.index)
        return table.loc[place.sort_values(kind="stable").index]

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Return each arm with its baseline, the first of these that was run and is another arm.

        1. the norm of the baseline with the arm's placement and other settings
        2. the norm and the settings of the baseline with the arm's placement
        3. the norm and the placement of the baseline with the arm's settings
        4. the baseline itself

        If the study declares comparisons of placements with the same settings, 3 comes before 2.
        Pairs of equal models occur once.
        """
        equal = self.equal_arms
        runs = self.runs.drop_duplicates("arm")[["arm", *ARM_COLUMNS]].to_dict("records")
        parts = {run["arm"]: parts_of_arm(run, self.vary) for run in runs}
        by_parts = {own: arm for arm, own in reversed(parts.items())}
        main = parts[self.baseline]
        declared = [(parts.get(each.arm), parts.get(each.baseline)) for each in self.primary]
        of_placements = any(
            a and b and a != b and a == b._replace(placement=a.placement) for a, b in declared
        )
        pairs: dict[tuple[str, str], tuple[str, str]] = {}
        for arm, own in parts.items():
            same_placement = main._replace(placement=own.placement)
            same_settings = main._replace(settings=own.settings)
            candidates = [own._replace(norm=main.norm), same_placement, same_settings]
            if of_placements:
                candidates = [own._replace(norm=main.norm), same_settings, same_placement]
            others = (by_parts.get(each, arm) for each in candidates)
            baseline = next((other for other in others if other != arm), self.baseline)
            pairs.setdefault((equal.get(arm, arm), equal.get(baseline, baseline)), (arm, baseline))
        return list(pairs.values())

    @cached_property
    def comparisons(self) -> Comparisons:
        """The comparisons of every arm with its baseline, and those that the study declares."""
        return Comparisons(self.runs, self.pairs, self.primary)

    @cached_property
    def equal_arms(self) -> dict[str, str]:
        """Arms that are equal to an earlier arm, with that arm: models without norms."""
        sites = self.runs[[name for name in self.runs if name.startswith("sites.")]]
        without_norms = (sites.isna() | (sites == "none")).all(axis="columns") & sites.notna().any(
            axis="columns"
        )
        runs = self.runs[without_norms & self.runs["placement"].isin(ALIKE_WITHOUT_NORMS)]
        main = self.runs["placement"].iloc[0]
        runs = runs.sort_values("placement", key=lambda column: column != main, kind="stable")
        first: dict[str, str] = {}
        same = {}
        for run in runs.drop_duplicates("arm")[["arm", "short"]].to_dict("records"):
            if first.setdefault(run["short"], run["arm"]) != run["arm"]:
                same[run["arm"]] = first[run["short"]]
        return same

    @property
    def is_smoke(self) -> bool:
        """Whether the runs only test the stages, with a tiny model."""
        return all(name.endswith("_smoke") for name in self.runs["experiment"])

    @property
    def metric(self) -> Metric:
        """The metric of the runs."""
        return find_metric(self.runs["metric"].iloc[0])

    @property
    def commits(self) -> list[str]:
        """The commit that scored each run, as text."""
        states = self.runs[["git.commit", "git.dirty"]].set_axis(["commit", "dirty"], axis=1)
        states = states.astype(object)
        states = states.where(states.notna(), None)
        return [short_commit(state) for state in states.to_dict("records")]

    @property
    def speed_spread(self) -> float | None:
        """The largest factor between the speeds of two seeds of an arm; None without two seeds.

        Above :data:`SAME_SPEED`, the runs shared the machine with other work.
        """
        speeds = self.runs.groupby("arm")["training.updates_per_second"]
        factor = (speeds.max() / speeds.min())[speeds.count() > 1].max()
        return None if pd.isna(factor) else float(factor)

    @property
    def times_comparable(self) -> bool:
        """Whether the speeds of the seeds show that the runs had the machine to themselves."""
        return self.speed_spread is not None and self.speed_spread <= SAME_SPEED


def read_study(
    folders: Sequence[Path],
    baseline: str | None = None,
    labels: Mapping[str, str] | None = None,
    file: StudyFile | None = None,
    vary: Sequence[str] = (),
    declared_labels: bool = False,
) -> Study:
    """Read the results in ``folders`` as one comparison.

    Args:
        folders: the folders of experiments.
        baseline: the norm or arm with which the others are compared; None: ``layernorm`` or, unless
            that is one arm, the first baseline that ``file`` declares.
        labels: new names of arms, by their names.
        file: the study file, which may declare comparisons and a tuning; runs may differ in the
            tuned keys.
        vary: more keys in which runs may differ, such as ``optimization.lr``. If each arm has one
            value of them, the names of the arms omit them. ``lr_scheduler`` selects the whole
            section. Those of ``file`` are added.
        declared_labels: name the arms by the labels of ``file`` too.

    Raises:
        CommandError: there are no results or no run of ``baseline``, a file is invalid, runs cannot
            be compared (another data checksum, test set or settings), runs are not those of
            ``file``, or a declared comparison cannot be made.
    """
    results = Results(*folders)
    runs = results.runs
    runs = runs.reindex(columns=[*runs, *(name for name in OPTIONAL if name not in runs)])
    runs["differs"] = [each if isinstance(each, dict) else {} for each in runs["differs"]]
    check_same_data(runs)
    check_alike(runs, "test set", ["split"])
    choosing = bool(vary)
    vary = (*vary, *(() if file is None else (*file.vary, *file.tuned)))
    check_settings_alike(runs, TRAINING, vary)
    failures = results.failures.copy()
    if file is not None:
        _check_declared(file, runs)
    failures = failures.rename(columns={"run.arm.placement": "placement"})
    declared = file.labels if file is not None and declared_labels else {}
    common, omitted = name_arms((runs, failures), labels or {}, vary, declared)
    for _, arm_runs in runs.groupby("arm"):
        _check_arm(arm_runs)
    chosen = _baselines(runs, baseline or _default_baseline(runs, file, common), common)
    # the first arm is the baseline with the placement of most runs
    size = runs.groupby("arm")["seed"].transform("size")
    order = runs[["placement", "norm", "seed"]].assign(other=~runs["arm"].isin(chosen), rank=-size)
    order = order.sort_values(["other", "rank", "placement", "norm", "seed"])
    runs = runs.loc[order.index].reset_index(drop=True)
    failures = failures.sort_values(["norm", "seed"], kind="stable", ignore_index=True)
    baseline, curves = runs["arm"].iloc[0], results.curves
    runs["train_loss"], trained = training_loss(runs, curves)
    study = Study(
        runs, curves, failures, baseline, common, omitted, vary=tuple(vary), trained=trained
    )
    if file is None:
        return study
    primary = _primary(file, study, choosing)
    every = pd.concat([runs[["arm", "seed"]], failures[["arm", "seed"]]])
    missing, common_seeds = file.seeds - {*every["seed"]}, file.common_seeds
    for arm in {name for each in primary for name in (*terms(each.arm), *terms(each.baseline))}:
        missing |= common_seeds - {*every.loc[every["arm"] == arm, "seed"]}
    return replace(study, primary=primary, missing_seeds=tuple(sorted(missing)))


def _check_declared(file: StudyFile, runs: pd.DataFrame) -> None:
    """Raise CommandError if the runs are not those of a study file, which then does not apply."""
    name, seeds = Path(file.experiment).stem, file.seeds
    for run in runs[["experiment", "seed", "folder"]].to_dict("records"):
        if run["experiment"] != name and not run["experiment"].startswith(f"{name}_"):
            raise CommandError(
                f"{run['folder']} has runs of {run['experiment']}, but {file.path} is a study of "
                f"{name}; name the study of these runs, or drop --study"
            )
        if run["seed"] not in seeds:
            raise CommandError(
                f"{run['folder']} has a run with seed {run['seed']}, but {file.path} declares "
                f"the seeds {', '.join(map(str, sorted(seeds)))}; report the study's own runs, "
                "or drop --study"
            )


def _primary(file: StudyFile, study: Study, choosing: bool) -> tuple[PrimaryComparison, ...]:
    """Return the declared comparisons by the names of arms; only one of equal models.

    Args:
        choosing: a declared name may be several arms, from which the best one is chosen later.
    """
    runs = pd.concat([study.runs, study.failures], ignore_index=True)
    arms: dict[str, str] = {}
    seeds: dict[str, set[int]] = {}
    sides = {side for each in file.primary for side in (each.arm, each.baseline)}
    declared = set() if choosing else {name for side in sides for name in terms(side)}
    for arm, arm_runs in runs.groupby("arm", sort=False):
        for run in arm_runs[ARM_COLUMNS].to_dict("records"):
            for name in (arm, *names_in_files(run, study.common, file.tuned)):
                if arms.setdefault(name, arm) != arm and name in declared:
                    raise CommandError(
                        f"{file.path} declares a comparison of {name}, which may be {arms[name]} "
                        f"or {arm}; report only the runs that it means"
                    )
                seeds.setdefault(name, set(arm_runs["seed"]))
    check_study(file, study.metric, seeds)
    comparisons: dict[tuple[str, str, str], PrimaryComparison] = {}
    for each in file.primary:
        arm, baseline = (
            MINUS.join(arms[name] for name in terms(side)) for side in (each.arm, each.baseline)
        )
        outcome = SCORE if each.outcome == study.metric.headline else each.outcome
        models = (study.equal_arms.get(arm, arm), study.equal_arms.get(baseline, baseline), outcome)
        comparisons.setdefault(models, replace(each, arm=arm, baseline=baseline, outcome=outcome))
    return tuple(comparisons.values())


def _default_baseline(runs: pd.DataFrame, file: StudyFile | None, common: dict[str, Value]) -> str:
    norms = {run["norm"] for run in _arms_named(runs, DEFAULT_BASELINE, common)}
    declared = file is not None and len(norms) != 1 and file.primary
    return terms(declared[0].baseline)[-1] if declared else DEFAULT_BASELINE


def _baselines(runs: pd.DataFrame, baseline: str, common: dict[str, Value]) -> set[str]:
    """Return the arms with the name or the norm ``baseline``."""
    chosen = _arms_named(runs, baseline, common)
    arms = {run["arm"] for run in chosen}
    if len({run["norm"] for run in chosen}) != 1:
        raise CommandError(
            f"{'several arms match' if arms else 'no run matches'} the baseline {baseline}; choose "
            f"one of these by --baseline: {'; '.join(sorted(arms or set(runs['arm'])))}"
        )
    return arms


def _arms_named(
    runs: pd.DataFrame, baseline: str, common: dict[str, Value]
) -> list[dict[str, Any]]:
    """Return one run of each arm that ``baseline`` may mean; names omit ``common``."""
    arms = runs.drop_duplicates("arm")[["arm", "id", *ARM_COLUMNS]].to_dict("records")
    short = {run["arm"]: arm_of(run).file_name(common) for run in arms}
    return (
        [run for run in arms if baseline in (run["arm"], run["norm"], short[run["arm"]])]
        or [run for run in arms if f"{baseline}, {run['placement']}" in (run["arm"], run["id"])]
        or [run for run in arms if run["run.arm.norm"] == baseline]
    )


def _check_arm(arm_runs: pd.DataFrame) -> None:
    norms = list(dict.fromkeys(arm_runs["norm"]))
    if len(norms) > 1:
        raise CommandError(
            f"the runs of {norms[0]} and {norms[1]} are both {arm_runs['arm'].iloc[0]}, from "
            "experiments with different placements; drop one folder"
        )
    again = arm_runs[arm_runs["seed"].duplicated(keep=False)]
    if not again.empty:
        seed = again["seed"].iloc[0]
        raise CommandError(
            f"two runs of {norms[0]} have seed {seed}, in "
            f"{' and '.join(again[again['seed'] == seed]['experiment'])}; drop one folder"
        )
    check_same_sources(arm_runs)
    check_settings_alike(arm_runs, ("model", *TRAINING))
