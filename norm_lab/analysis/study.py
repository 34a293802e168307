"""The runs of one comparison as a table, each with its arm; and the scores of an experiment.

An arm is a norm with its options and a placement. Its runs differ in their seed only. A run that
failed or diverged has no result, but a row in the table of failures.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.analysis.stats import half_interval, split_ratio
from norm_lab.analysis.training_loss import training_loss
from norm_lab.experiments.metrics import Metric, find_metric
from norm_lab.experiments.results import (
    read_curves,
    read_failures,
    read_results,
    short_commit,
)
from norm_lab.experiments.spec import (
    Differences,
    changed_sources,
    common_settings,
    norm_of_label,
    short_label,
)
from norm_lab.experiments.studies import MINUS, PrimaryComparison, StudyFile, check_study, terms
from norm_plugin.io.command_line import CommandError

TRAINING = ("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")
"""The sections of the settings that determine the training."""
SPLIT_SEED = "data.settings.split_seed"
"""The column of the seed of a random split of the corpus."""
OPTIONAL = (
    *("commit", "dirty", "date", "differs", "data.training_pairs"),
    *("training.seconds", "training.updates_per_second", "training.peak_memory"),
)
"""Columns that are added if no result has them."""
DEFAULT_BASELINE = "layernorm"
SAME_SPEED = 1.1
"""On an idle machine, the speeds of two seeds of an arm differ by less than this factor."""
ALIKE_WITHOUT_NORMS = ("pre", "post")
"""Placements that are equal for a model without norms: ``x + f(x)``."""
KERNELS_FOUND = "norm_kernels_found"
"""Stored among the settings of a model: the kernels that its machine had to offer."""
NOT_SETTINGS = ("seed", KERNELS_FOUND)
"""What is stored among the settings, and in which the runs of an arm may differ."""
# Names of a flag and of an override. If a run has both, the flag counts, as it comes last.
PLACEMENT_KEYS = ("norm-placement", "model.norm_placement")


@dataclass(frozen=True)
class Study:
    """The runs of one comparison.

    Attributes:
        common: the settings that differ from the recipe and are the same in all runs.
        runs: the table of :func:`read_results` with the column ``arm``, sorted by arm and seed.
            ``train_loss`` is that of :func:`training_loss`.
        curves: the table of :func:`read_curves`.
        failures: the table of :func:`read_failures` with the columns ``arm`` and ``placement``.
        baseline: the arm that the others are compared with; it comes first.
        primary: the comparisons that the study declares, by the names of arms.
        vary: keys in which the arms may differ, as each has a value of its own.
        missing_seeds: those that the study declares, and with which nothing has run.
        trained: what ``train_loss`` is a mean over, such as ``updates 901 to 1,000``.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    failures: pd.DataFrame
    baseline: str
    common: Differences = field(default_factory=dict)
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

    @property
    def placements(self) -> dict[str, str]:
        """The placement of each arm; the baseline comes first, arms without a result last."""
        both = pd.concat([self.runs, self.failures])
        return dict(zip(both["arm"], both["placement"]))

    def by_placement(self, table: pd.DataFrame) -> pd.DataFrame:
        """Sort a table with a column ``arm`` by placement, that of the baseline first."""
        order = list(dict.fromkeys(self.placements.values()))
        place = table["arm"].map(self.placements).map(order.index)
        return table.loc[place.sort_values(kind="stable").index]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each arm with its baseline, the first of these that ran and is another arm.

        1. the norm of the baseline with the arm's placement and other settings
        2. the norm and the settings of the baseline with the arm's placement
        3. the norm and the placement of the baseline with the arm's settings
        4. the baseline itself

        If the study declares comparisons of placements with the same settings, 3 comes before 2.
        Pairs of equal models occur once.
        """
        same = self.same
        runs = self.runs.drop_duplicates("arm").to_dict("records")
        parts = {run["arm"]: _parts_of_arm(run, self.vary) for run in runs}
        by_parts = {of_arm: arm for arm, of_arm in reversed(parts.items())}
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
            pairs.setdefault((same.get(arm, arm), same.get(baseline, baseline)), (arm, baseline))
        return list(pairs.values())

    @property
    def same(self) -> dict[str, str]:
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
        for run in runs.drop_duplicates("arm").to_dict("records"):
            name = run["arm"].removesuffix(f", {run['placement']}")
            if first.setdefault(name, run["arm"]) != run["arm"]:
                same[run["arm"]] = first[name]
        return same

    @property
    def metric(self) -> Metric:
        """The metric of the runs."""
        return find_metric(self.runs["metric"].iloc[0])

    @property
    def commits(self) -> list[str]:
        """The commit that scored each run, as text."""
        states = self.runs[["commit", "dirty"]].astype(object)
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


class ArmParts(NamedTuple):
    """The norm of an arm, its placement, and its other settings that differ from the recipe."""

    norm: str
    placement: str
    settings: str


def _parts_of_arm(run: Mapping[str, Any], vary: Sequence[str]) -> ArmParts:
    other = set(run["differs"]) - {*PLACEMENT_KEYS, *vary}
    differs = {key: run["differs"][key] for key in other}
    norm = norm_of_label(run["norm"], run["differs"]).removesuffix(f"-{run['placement']}")
    return ArmParts(norm, run["placement"], json.dumps(differs, sort_keys=True))


def read_study(
    folders: Sequence[Path],
    baseline: str | None = None,
    labels: Mapping[str, str] | None = None,
    file: StudyFile | None = None,
    vary: Sequence[str] = (),
) -> Study:
    """Read the results in ``folders`` as one comparison.

    Args:
        folders: the folders of experiments.
        baseline: the norm or arm that the others are compared with; None: ``layernorm`` or, unless
            that is one arm, the first baseline that ``file`` declares.
        labels: new names of arms, by their names.
        file: the study file, which may declare comparisons and a tuning; runs may differ in the
            tuned keys.
        vary: more keys in which runs may differ, such as ``optimization.lr``. If each arm has one
            value of them, the names of the arms leave them out. ``lr_scheduler`` stands for the
            whole section. Those of ``file`` are added.

    Raises:
        CommandError: no results, an invalid file, no run of ``baseline``, runs that cannot be
            compared (another data checksum, test set or recipe), runs that are not those of
            ``file``, or a declared comparison that cannot be made.
    """
    runs = read_results(*folders)
    runs = runs.reindex(columns=[*runs, *(name for name in OPTIONAL if name not in runs)])
    runs["differs"] = [each if isinstance(each, dict) else {} for each in runs["differs"]]
    check_same_data(runs)
    check_alike(runs, "test set", ["split"])
    vary = (*vary, *(() if file is None else (*file.vary, *file.tuned)))
    check_settings_alike(runs, TRAINING, vary)
    failures = read_failures(*folders)
    if file is not None:
        _check_declared(file, runs)
    failures["placement"] = [_placement_of_failure(r, runs) for r in failures.to_dict("records")]
    every = pd.concat([runs, failures], ignore_index=True)
    common, names = arm_names(every, labels or {}, vary)
    for table in (runs, failures):
        table["arm"] = [names[key] for key in zip(table["norm"], table["placement"])]
    for _, of_arm in runs.groupby("arm"):
        _check_arm(of_arm)
    chosen = _baselines(runs, baseline or _default_baseline(runs, file, common), common)
    # the first arm is the baseline under the placement of most runs
    size = runs.groupby("arm")["seed"].transform("size")
    order = runs[["placement", "norm", "seed"]].assign(other=~runs["arm"].isin(chosen), rank=-size)
    order = order.sort_values(["other", "rank", "placement", "norm", "seed"])
    runs = runs.loc[order.index].reset_index(drop=True)
    failures = failures.sort_values(["norm", "seed"], kind="stable", ignore_index=True)
    baseline, curves = runs["arm"].iloc[0], read_curves(*folders)
    runs["train_loss"], trained = training_loss(runs, curves)
    study = Study(runs, curves, failures, baseline, common, vary=tuple(vary), trained=trained)
    if file is None:
        return study
    missing = file.seeds - {*runs["seed"], *failures["seed"]}
    return replace(study, primary=_primary(file, study), missing_seeds=tuple(sorted(missing)))


def _check_declared(file: StudyFile, runs: pd.DataFrame) -> None:
    """Raise CommandError for runs that are not those of a study, which declares nothing of them."""
    name, seeds = Path(file.experiment).stem, file.seeds
    for run in runs.to_dict("records"):
        if run["experiment"] != name and not run["experiment"].startswith(f"{name}_"):
            raise CommandError(
                f"{run['folder']} has runs of {run['experiment']}, and {file.path} is a study of "
                f"{name}; name the study of these runs, or leave out --study"
            )
        if run["seed"] not in seeds:
            raise CommandError(
                f"{run['folder']} has a run with seed {run['seed']}, and {file.path} declares "
                f"the seeds {', '.join(map(str, sorted(seeds)))}; report the study's own runs, "
                "or leave out --study"
            )


def _primary(file: StudyFile, study: Study) -> tuple[PrimaryComparison, ...]:
    """The declared comparisons by the names of arms; those of equal models occur once."""
    runs = pd.concat([study.runs, study.failures], ignore_index=True)
    arms: dict[str, str] = {}
    seeds: dict[str, set[int]] = {}
    for arm, of_arm in runs.groupby("arm", sort=False):
        for run in of_arm.to_dict("records"):
            shared = label_without(run, study.common)
            short = label_without(run, (*study.common, *file.tuned))
            for name in (arm, run["norm"], shared, short):
                arms[name], seeds[name] = arm, set(of_arm["seed"])
    check_study(file, study.metric, seeds)
    comparisons: dict[tuple[str, str, str], PrimaryComparison] = {}
    for each in file.primary:
        arm, baseline = (
            MINUS.join(arms[name] for name in terms(side)) for side in (each.arm, each.baseline)
        )
        models = (study.same.get(arm, arm), study.same.get(baseline, baseline), each.outcome)
        comparisons.setdefault(models, replace(each, arm=arm, baseline=baseline))
    return tuple(comparisons.values())


def arm_names(
    runs: pd.DataFrame, labels: Mapping[str, str], vary: Sequence[str] = ()
) -> tuple[Differences, dict[tuple[str, str], str]]:
    """The settings that all arms share, and the name of each arm, by its norm and placement.

    The names leave out these settings, and those of ``vary`` unless two arms differ in these only.

    Args:
        runs: those with and without a result.
        labels: new names, by the name of an arm, its label or its norm.

    Raises:
        CommandError: a key of ``labels`` does not name exactly one arm.
    """
    arms = {(run["norm"], run["placement"]): run for run in runs.to_dict("records")}
    common = common_settings(run["differs"] for run in arms.values())
    short = {key: label_without(run, (*common, *vary)) for key, run in arms.items()}
    if len({(name, placement) for (_, placement), name in short.items()}) < len(arms):
        short = {key: label_without(run, common) for key, run in arms.items()}
    names = {key: arm_name(label, key[1]) for key, label in short.items()}
    for old, new in labels.items():
        rows = {names[key] for key in names if old in (names[key], short[key], key[0])}
        if len(rows) != 1:
            raise CommandError(
                f"--label {old}={new}: {old} is the name of {len(rows)} rows; choose from "
                f"{'; '.join(sorted(rows or set(names.values())))}"
            )
        names = {key: new if name in rows else name for key, name in names.items()}
    return common, names


def label_without(run: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The label of a run without these settings."""
    differs = run["differs"]
    return short_label(run["norm"], differs, [key for key in keys if key in differs])


def arm_name(label: str, placement: str) -> str:
    """The name of an arm: ``powernorm-released, pre``.

    The label contains the placement too if that differs from the recipe's.
    """
    return f"{label.removesuffix(f'-{placement}')}, {placement}"


def _default_baseline(runs: pd.DataFrame, file: StudyFile | None, common: Differences) -> str:
    norms = {run["norm"] for run in _of_baseline(runs, DEFAULT_BASELINE, common)}
    declared = file is not None and len(norms) != 1 and file.primary
    return terms(declared[0].baseline)[-1] if declared else DEFAULT_BASELINE


def _baselines(runs: pd.DataFrame, baseline: str, common: Differences) -> set[str]:
    """The arms with the name or the norm ``baseline``."""
    chosen = _of_baseline(runs, baseline, common)
    arms = {run["arm"] for run in chosen}
    if len({run["norm"] for run in chosen}) != 1:
        raise CommandError(
            f"{'several arms are' if arms else 'no run is'} of the baseline {baseline}; name one "
            f"of these by --baseline: {'; '.join(sorted(arms or set(runs['arm'])))}"
        )
    return arms


def _of_baseline(runs: pd.DataFrame, baseline: str, common: Differences) -> list[dict[str, Any]]:
    """A run of each arm that ``baseline`` can mean; ``common`` is left out of the names."""
    arms = runs.drop_duplicates("arm").to_dict("records")
    short = {run["arm"]: label_without(run, common) for run in arms}
    return (
        [run for run in arms if baseline in (run["arm"], run["norm"], short[run["arm"]])]
        or [run for run in arms if run["arm"] == arm_name(baseline, run["placement"])]
        or [run for run in arms if norm_of_label(run["norm"], run["differs"]) == baseline]
    )


def _check_arm(of_arm: pd.DataFrame) -> None:
    norms = list(dict.fromkeys(of_arm["norm"]))
    if len(norms) > 1:
        raise CommandError(
            f"the runs of {norms[0]} and {norms[1]} are both {of_arm['arm'].iloc[0]}, by recipes "
            "with different placements; leave one folder out"
        )
    again = of_arm[of_arm["seed"].duplicated(keep=False)]
    if not again.empty:
        seed = again["seed"].iloc[0]
        raise CommandError(
            f"two runs of {norms[0]} have seed {seed}, in "
            f"{' and '.join(again[again['seed'] == seed]['experiment'])}; leave one folder out"
        )
    check_same_sources(of_arm)
    check_settings_alike(of_arm, ("model", *TRAINING))


def _placement_of_failure(record: dict[str, Any], runs: pd.DataFrame) -> str:
    """The placement of a failed run; its record has it only if it differs from the recipe's."""
    for key in PLACEMENT_KEYS:
        if key in record["differs"]:
            return str(record["differs"][key])
    for run in runs[runs["experiment"] == record["experiment"]].to_dict("records"):
        changed = any(key in run["differs"] for key in PLACEMENT_KEYS)
        if run["norm"] == record["norm"] or not changed:
            return str(run["placement"])
    return "placement of the recipe"


# --- which runs may be compared -----------------------------------------------------------------


def check_alike(runs: pd.DataFrame, what: str, columns: Iterable[str]) -> None:
    """Raise CommandError if two runs differ in one of ``columns``."""
    values = runs[[name for name in columns if name in runs]].map(_comparable)
    differs = (values != values.iloc[0]).any(axis="columns")
    if not differs.any():
        return
    first, other = runs.iloc[0], runs.loc[differs.idxmax()]
    changed = [name for name in values if values[name].iloc[0] != values.loc[other.name, name]]
    sides = (", ".join(f"{name} {run[name]}" for name in changed) for run in (first, other))
    raise CommandError(
        f"{_names(first, other)} differ in {what} ({'; '.join(sides)}); run them with the same "
        "settings, or name what the study varies by --vary KEY"
    )


def _comparable(value: Any) -> str:
    """A value as text, since lists have no hash and NaN is not equal to itself."""
    missing = value is None or (isinstance(value, float) and value != value)
    return "" if missing else json.dumps(value, default=str)


def _names(first: pd.Series, other: pd.Series) -> str:
    ours, theirs = (f"{run['norm']} seed {run['seed']}" for run in (first, other))
    if first["experiment"] != other["experiment"]:
        ours += f" of {first['experiment']}"
    return f"{ours} and {theirs} of {other['experiment']}"


def check_settings_alike(
    runs: pd.DataFrame, sections: Sequence[str], vary: Sequence[str] = ()
) -> None:
    """Raise CommandError if runs differ in one of these sections of their settings, except seeds.

    Args:
        vary: keys in which the runs may differ, such as ``optimization.lr``, or whole sections.
            fairseq repeats the learning rate among the settings of the optimizer and of the
            schedule, where it may differ too.
    """
    free = {*NOT_SETTINGS, *(key.rpartition(".")[2] for key in vary)}
    for section in (name for name in sections if name not in vary):
        prefix = f"settings.{section}."
        settings = [name for name in runs if name.startswith(prefix)]
        names = [name for name in settings if name.removeprefix(prefix) not in free]
        check_alike(runs, f"settings of {section}", names)


def check_same_sources(runs: pd.DataFrame) -> None:
    """Raise CommandError if runs were trained with different versions of a file of the user dir."""
    if "sources" not in runs:
        return
    first = runs.iloc[0]
    files = [files if isinstance(files, dict) else {} for files in runs["sources"]]
    for place, of_other in enumerate(files):
        if changed := changed_sources(files[0], of_other):
            other = runs.iloc[place]
            raise CommandError(
                f"{_names(first, other)} were trained with different versions of "
                f"{', '.join(changed)}; remove the runs and results of one version, and run them "
                "again"
            )


def check_same_data(runs: pd.DataFrame) -> None:
    """Raise CommandError if runs have different data or metrics.

    If each seed splits the corpus at random, only runs of the same split must have the same data,
    and all splits must be of one corpus.
    """
    check_alike(runs, "metric", ["metric"])
    splits = [split for _, split in runs.groupby("split_seed", dropna=False)]
    for split in splits:
        check_alike(split, "data checksum", ["data.checksum"])
    if len(splits) > 1:
        check_alike(runs, "corpus", ["data.corpus"])
        settings = [name for name in runs if name.startswith("data.settings.")]
        check_alike(runs, "settings of the data", [n for n in settings if n != SPLIT_SEED])


# --- the table of an experiment, in Markdown ----------------------------------------------------


NOT_COMPUTED = "not computed"


def markdown(table: pd.DataFrame, align: Sequence[str] = ()) -> str:
    """A table in Markdown.

    Args:
        align: ``---`` or ``---:`` for each column (default: left).
    """
    rows = [list(table.columns), *table.itertuples(index=False)]
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, list(align) or ["---"] * len(table.columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def span(counts: Iterable[int]) -> str:
    """``1,000``, or ``998 to 1,000`` if counts differ, as on random splits of a corpus."""
    ordered = sorted(counts)
    return " to ".join(f"{count:,}" for count in dict.fromkeys((ordered[0], ordered[-1])))


def distinct(values: Iterable[object]) -> list[str]:
    """The distinct values as sorted text, without missing ones."""
    return sorted({str(value) for value in values if not pd.isna(value)})


def score_table(runs: pd.DataFrame) -> str:
    """The scores of an experiment in Markdown, one row per norm, with notes.

    Raises CommandError for runs that cannot be compared: different data, different splits, or
    seeds of one norm with different settings.
    """
    check_same_data(runs)
    check_alike(runs, "split", ["split"])
    metric = find_metric(runs["metric"].iloc[0])
    norms = runs.groupby("norm", sort=False)
    table = pd.DataFrame([_scores_of_norm(of_norm, metric) for _, of_norm in norms])
    lines = [markdown(table, ["---", *["---:"] * (len(table.columns) - 1)]), ""]
    for kind, title in metric.columns.items():
        if f"scores.{kind}.score" not in runs:
            meaning = f"{title}: {NOT_COMPUTED} when these runs were scored"
        elif f"scores.{kind}.signature" in runs:
            signatures = distinct(runs[f"scores.{kind}.signature"])
            meaning = f"{title}: {', '.join(f'`{signature}`' for signature in signatures)}"
        else:
            labels = "; ".join(distinct(runs[f"scores.{kind}.label"]))
            meaning = labels if labels.startswith(title) else f"{title}: {labels}"
        lines.append(f"{meaning}.")
    if norms.size().max() > 1:
        lines.append(
            f"Several seeds: mean; the interval is Student's t for the mean of {metric.title}."
        )
    notes = [name for name in runs if name.startswith("scores.") and name.endswith(".note")]
    for run in runs.to_dict("records"):
        for name in notes:
            if isinstance(run[name], str):
                lines.append(f"Note on {run['norm']}, seed {run['seed']}: {run[name]}.")
    return "\n".join(lines)


def _scores_of_norm(runs: pd.DataFrame, metric: Metric) -> dict[str, str]:
    """A row of the table; old results may lack a kind of score or the speed."""
    check_same_sources(runs)
    check_settings_alike(runs, ("model", *TRAINING))

    def mean(column: str, unknown: str, form: Callable[[float], str] = metric.text) -> str:
        if column not in runs or runs[column].isna().any():
            return unknown
        return form(statistics.mean(runs[column].tolist()))

    seeds, single = ", ".join(map(str, runs["seed"])), len(runs) == 1
    half = math.nan if single else half_interval(runs["score"], split_ratio(runs))
    first, *others = metric.columns.items()
    return {
        "Norm": str(runs["norm"].iloc[0]),
        "Seeds": seeds if single else f"{seeds} (n = {len(runs)})",
        "Parameters": span(runs["model.parameters"]),
        first[1]: mean("score", NOT_COMPUTED),
        "95 % interval": "one seed" if single else f"± {metric.text(half)}",
        **{title: mean(f"scores.{kind}.score", NOT_COMPUTED) for kind, title in others},
        "updates/s": mean("training.updates_per_second", "unknown", "{:.2f}".format),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``table``."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin table",
        description="Print the table of an experiment in Markdown.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results/<experiment>")
    args = parser.parse_args(argv)
    print(score_table(read_results(args.folder)))
    return 0
