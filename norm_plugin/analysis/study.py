"""The runs of one comparison, grouped by setting: what a report is made from.

A setting is a norm, with what was changed in its options, under a placement. Its runs differ in
their seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.comparable import (
    TRAINING,
    check_alike,
    check_same_data,
    check_settings_alike,
)
from norm_plugin.experiments.metrics import Metric
from norm_plugin.experiments.results import Result, headline, metric_of, read_results


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seed alone."""

    norm: str
    placement: str
    runs: tuple[Result, ...]

    @property
    def name(self) -> str:
        """Of the row: ``powernorm-released, pre``."""
        return f"{self.norm}, {self.placement}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """In the order of the runs."""
        return tuple(run["seed"] for run in self.runs)

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
    """The settings of one comparison, the baseline first."""

    settings: tuple[Setting, ...]

    @property
    def baseline(self) -> Setting:
        """What the others are compared with."""
        return self.settings[0]

    @property
    def runs(self) -> list[Result]:
        """Of all settings."""
        return [run for setting in self.settings for run in setting.runs]

    def agreed(self, read: Callable[[Result], Any]) -> list[str]:
        """The distinct values of a fact over all runs, as text, sorted."""
        return sorted({str(read(run)) for run in self.runs})


def read_study(folders: Sequence[Path], baseline: str = "layernorm") -> Study:
    """Read the results in ``folders`` as one comparison.

    Args:
        folders: of one experiment each, with a JSON file a run.
        baseline: the norm that the others are compared with.

    Raises:
        CommandError: no results, a file that is none, no run of ``baseline``, or runs that cannot
            be compared: another data checksum, another test set, another recipe.
    """
    results = [result for folder in folders for result in read_results(folder)]
    check_same_data(results)
    check_alike(results, "test set", lambda run: run["split"])
    check_settings_alike(results, TRAINING)
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result["norm"], placement_of(result)), []).append(result)
    settings = [Setting(*key, tuple(_sorted_by_seed(runs))) for key, runs in groups.items()]
    norms = sorted({setting.norm for setting in settings})
    if baseline not in norms:
        raise CommandError(f"the baseline is {baseline!r}; there are runs of {', '.join(norms)}")
    # The baseline under the placement that most runs have stands first.
    settings.sort(key=lambda one: (one.norm != baseline, -len(one.runs), one.placement, one.norm))
    return Study(tuple(settings))


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
    check_settings_alike(ordered, ("model",))
    return ordered
