"""The runs of one comparison, grouped by setting: what a report is made from.

A setting is a norm, with what was changed in its options, under a placement. Its runs differ in
their seed alone. A run that failed or diverged has no result; its record lies in ``failed/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError, read_json
from norm_plugin.experiments.comparable import (
    TRAINING,
    check_alike,
    check_same_data,
    check_same_sources,
    check_settings_alike,
    split_seed,
)
from norm_plugin.experiments.metrics import Metric
from norm_plugin.experiments.naming import Differences, norm_of_label, short_label
from norm_plugin.experiments.results import (
    Result,
    headline,
    metric_of,
    read_result_files,
    result_name,
)

REQUIRED = (
    "norm",
    "seed",
    "split",
    "metric",
    "scores",
    "model",
    "training",
    "settings",
    "data",
    "versions",
)
# Of a flag and of an override. Where a run has both, the flag counts, as it stands last.
PLACEMENT_KEYS = ("norm-placement", "model.norm_placement")
FAILED_KEYS = ("experiment", "norm", "seed", "differs", "state", "stage", "reason")


def _name(norm: str, placement: str) -> str:
    """A run that has not the placement of its recipe has it in its label too."""
    return f"{norm.removesuffix(f'-{placement}')}, {placement}"


@dataclass(frozen=True)
class Failure:
    """A run without a result.

    Attributes:
        state: failed or diverged.
        curves: as in a result; None where the training printed none.
    """

    norm: str
    placement: str
    seed: int
    state: str
    stage: str
    reason: str
    progress: str
    curves: dict[str, Any] | None
    differs: Differences = field(default_factory=dict)
    shown: str | None = None

    @property
    def name(self) -> str:
        """Of its setting."""
        return self.shown or _name(self.norm, self.placement)


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seed alone.

    Attributes:
        runs: their results, at least one, by seed; ``folder`` in each is where it was read.
        shown: the name of the row, where it is another than that of the norm and the placement.
    """

    norm: str
    placement: str
    runs: tuple[Result, ...]
    shown: str | None = None

    @property
    def name(self) -> str:
        """Of the row: ``powernorm-released, pre``."""
        return self.shown or _name(self.norm, self.placement)

    @property
    def differs(self) -> Differences:
        """The settings that differ from the recipe."""
        return dict(self.runs[0].get("differs") or {})

    @property
    def seeds(self) -> tuple[int, ...]:
        """In the order of the runs."""
        return tuple(run["seed"] for run in self.runs)

    @property
    def by_seed(self) -> dict[int, float]:
        """The headline score of each seed."""
        return dict(zip(self.seeds, self.scores))

    @property
    def split_by_seed(self) -> bool:
        """Whether each seed has a random split of the corpus, the same for all settings."""
        return all(split_seed(run) is not None for run in self.runs)

    @property
    def metric(self) -> Metric:
        """By which the runs are scored."""
        return metric_of(self.runs[0])

    @property
    def scores(self) -> list[float]:
        """The headline scores of the metric, one a run."""
        return [headline(run) for run in self.runs]


@dataclass(frozen=True)
class Study:
    """The settings of one comparison, the baseline first, and the runs that have no result."""

    settings: tuple[Setting, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def baseline(self) -> Setting:
        """What the others are compared with."""
        return self.settings[0]

    def failures_of(self, name: str) -> list[Failure]:
        """Of the setting with this name."""
        return [failure for failure in self.failures if failure.name == name]

    def named(self, name: str) -> Setting | None:
        """The setting with this name; None where no run of it has a result."""
        return next((setting for setting in self.settings if setting.name == name), None)

    @property
    def names(self) -> list[str]:
        """Of all settings, those without a result last."""
        return [*(setting.name for setting in self.settings), *self.failed_settings]

    @property
    def failed_settings(self) -> list[str]:
        """The names of settings that have no result at all."""
        named = {setting.name for setting in self.settings}
        return sorted({failure.name for failure in self.failures} - named)

    @property
    def runs(self) -> list[Result]:
        """Of all settings."""
        return [run for setting in self.settings for run in setting.runs]

    def agreed(self, read: Callable[[Result], Any]) -> list[str]:
        """The distinct values of a fact over all runs, as text, sorted."""
        return sorted({str(read(run)) for run in self.runs})


def read_study(
    folders: Sequence[Path], baseline: str = "layernorm", labels: Mapping[str, str] | None = None
) -> Study:
    """Read the results in ``folders`` as one comparison.

    Args:
        folders: of one experiment each, with a JSON file a run.
        baseline: the norm, or the name of the row, that the others are compared with.
        labels: other names of rows, by their names.

    Raises:
        CommandError: no results, a file that is none, no run of ``baseline``, or runs that cannot
            be compared: another data checksum, another test set, another recipe.
    """
    results = [
        {**_checked(result, folder), "folder": folder}
        for folder in folders
        for result in read_result_files(folder)
    ]
    check_same_data(results)
    check_alike(results, "test set", lambda run: run["split"])
    check_settings_alike(results, TRAINING)
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result["norm"], placement_of(result)), []).append(result)
    settings = [Setting(*key, tuple(_sorted_by_seed(runs))) for key, runs in groups.items()]
    failures = [failure for folder in folders for failure in read_failures(folder, results)]
    settings, failures = named_by_differences(settings, failures, labels or {})
    _check_names(settings)
    chosen = _baselines(settings, baseline)
    # The baseline under the placement that most runs have stands first.
    settings.sort(key=lambda one: (one not in chosen, -len(one.runs), one.placement, one.norm))
    return Study(tuple(settings), tuple(failures))


def named_by_differences(
    settings: Sequence[Setting], failures: Sequence[Failure], labels: Mapping[str, str]
) -> tuple[list[Setting], list[Failure]]:
    """Settings and failures whose names leave out what all of them share, and those of ``labels``.

    Raises CommandError for a name in ``labels`` that is not that of one row.
    """
    runs: list[Setting | Failure] = [*settings, *failures]
    common = common_settings(runs)
    short = {id(one): short_label(one.norm, one.differs, common) for one in runs}
    names = {id(one): _name(short[id(one)], one.placement) for one in runs}
    for old, new in labels.items():
        rows = {names[id(one)] for one in runs if old in (names[id(one)], short[id(one)], one.norm)}
        if len(rows) != 1:
            raise CommandError(
                f"--label {old}={new}: {old} is the name of {len(rows)} rows; choose from "
                f"{'; '.join(sorted(rows or set(names.values())))}"
            )
        names = {key: new if name in rows else name for key, name in names.items()}
    return (
        [replace(one, shown=names[id(one)]) for one in settings],
        [replace(one, shown=names[id(one)]) for one in failures],
    )


def common_settings(runs: Sequence[Setting | Failure]) -> Differences:
    """The settings that differ from the recipe, and are the same in all of several runs."""
    first = runs[0].differs
    missing = object()
    return {
        key: value
        for key, value in first.items()
        if len(runs) > 1 and all(one.differs.get(key, missing) == value for one in runs)
    }


def _baselines(settings: Sequence[Setting], baseline: str) -> list[Setting]:
    """The settings that ``--baseline`` names, by their names or by their norm."""
    chosen = [one for one in settings if baseline in (one.name, one.norm)]
    chosen = chosen or [one for one in settings if one.name == _name(baseline, one.placement)]
    chosen = chosen or [one for one in settings if norm_of_label(one.norm, one.differs) == baseline]
    names = sorted(one.name for one in chosen or settings)
    if not chosen:
        raise CommandError(
            f"no run is of the baseline {baseline}; name one of these by --baseline: "
            f"{'; '.join(names)}"
        )
    if len({one.norm for one in chosen}) > 1:
        raise CommandError(
            f"several settings are of the baseline {baseline}; name one of these by --baseline: "
            f"{'; '.join(names)}"
        )
    return chosen


def _check_names(settings: Sequence[Setting]) -> None:
    for one, other in combinations(settings, 2):
        if one.name == other.name:
            raise CommandError(
                f"the runs of {one.norm} and {other.norm} both are {one.name}, by recipes of "
                "different placements; leave one folder out"
            )


def _checked(result: Result, folder: Path) -> Result:
    missing = [key for key in REQUIRED if key not in result]
    if missing:
        raise CommandError(
            f"{folder / result_name(result['norm'], result['seed'])} lacks {', '.join(missing)}; "
            "write it again"
        )
    return result


def read_failures(folder: Path, results: Sequence[Result]) -> list[Failure]:
    """The runs of a folder of results that failed or diverged, by norm and seed.

    A run that has a result is left out: it failed at another time.

    Args:
        results: of the study, which tell the placement that the recipe of an experiment has.

    Raises:
        CommandError: a file that is no record of a failure.
    """
    found = []
    have_results = {_identity(result) for result in results}
    for path in sorted(folder.glob("failed/*.json")):
        record = read_json(path)
        missing = [key for key in FAILED_KEYS if key not in record]
        if missing:
            raise CommandError(f"{path} is no record of a failed run: it lacks {missing[0]}")
        if _identity(record) in have_results:
            continue
        found.append(
            Failure(
                record["norm"],
                _placement_of_failure(record, results),
                record["seed"],
                record["state"],
                record["stage"],
                record["reason"],
                record.get("progress", ""),
                record.get("curves"),
                record["differs"],
            )
        )
    return sorted(found, key=lambda failure: (failure.norm, failure.seed))


def _identity(run: Mapping[str, Any]) -> tuple[str, str, int]:
    return run["experiment"], run["norm"], run["seed"]


def _placement_of_failure(record: dict[str, Any], results: Sequence[Result]) -> str:
    """A record names the placement only where it differs from the recipe's."""
    for key in PLACEMENT_KEYS:
        if key in record["differs"]:
            return str(record["differs"][key])
    for result in results:
        same = result["experiment"] == record["experiment"]
        changed = any(key in result.get("differs", {}) for key in PLACEMENT_KEYS)
        if same and (result["norm"] == record["norm"] or not changed):
            return placement_of(result)
    return "placement of the recipe"


def placement_of(result: Result) -> str:
    """The placement of a run; stock fairseq's models name it by a switch."""
    model = result["settings"]["model"]
    stock = "pre" if model.get("encoder_normalize_before") else "post"
    everywhere = str(model.get("norm_placement") or stock)
    encoder, decoder = (
        str(model.get(f"norm_placement_{side}") or everywhere) for side in ("encoder", "decoder")
    )
    return encoder if encoder == decoder else f"encoder {encoder}, decoder {decoder}"


def _sorted_by_seed(runs: Iterable[Result]) -> list[Result]:
    ordered = sorted(runs, key=lambda run: run["seed"])
    for one, other in pairwise(ordered):
        if one["seed"] == other["seed"]:
            raise CommandError(
                f"two runs of {one['norm']} have seed {one['seed']}, in {one['experiment']} and "
                f"{other['experiment']}; leave one folder out"
            )
    check_same_sources(ordered)
    check_settings_alike(ordered, ("model",))
    return ordered
