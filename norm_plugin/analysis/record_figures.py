"""The recorded statistics of a study as small multiples: a row for each value, a column a site.

A line is the mean over the seeds of a setting, at the updates that all its records have. Up to
four sites are drawn, from the first to the last of the model; PowerNorm's figures look at the
encoder, whose first norm is the one of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from norm_plugin.analysis.figures import Figure, draw, legend_below, legend_height, style
from norm_plugin.analysis.records import FIGURES, FigureData, TrainingRecord, record_of
from norm_plugin.analysis.study import Setting, Study
from norm_plugin.experiments.kept import STATISTICS, expand, read_kept, statistics_in
from norm_plugin.experiments.results import Result
from norm_plugin.models.measures import LEVELS
from norm_plugin.models.sites import SLOTS

MOST_SITES = 4
LOGARITHMIC = 20
"""A row whose values span more than this factor has a logarithmic axis."""
DRAWN_LEVELS = (0.05, 0.5, 0.95)
"""Of a value over channels; the record has more."""
Line = dict[int, float]
"""A value by update."""
Value = tuple[str, int | None]
"""Its name in the record, and for a value over channels the place of a quantile in LEVELS."""
Key = tuple[str, Value, str]
"""Of a line: setting, value, place."""


def statistics_of(run: Result) -> dict[str, Any] | None:
    """What is kept of the statistics of a run; None where nothing is."""
    entry = (run.get("kept") or {}).get(STATISTICS)
    if entry is None:
        return None
    return _statistics(run["folder"], run["norm"], run["seed"], entry["file"], entry["sha256"])


@cache
def _statistics(folder: Path, norm: str, seed: int, file: str, checksum: str) -> dict[str, Any]:
    kept = {STATISTICS: {"file": file, "sha256": checksum}}
    text = read_kept(folder, {"norm": norm, "seed": seed, "kept": kept}, STATISTICS)
    assert text is not None
    return statistics_in(text, folder / file)


def record_of_run(run: Result) -> TrainingRecord | None:
    """The record of a run; None where none is kept."""
    statistics = statistics_of(run)
    if statistics is None or statistics["record"] is None:
        return None
    return record_of(Path(run["folder"]), expand(statistics["record"]))


def records_of(setting: Setting) -> list[TrainingRecord]:
    """One a run, of those that have one."""
    return [record for run in setting.runs if (record := record_of_run(run))]


def record_figure(study: Study, name: str) -> Figure | None:
    """A figure of :data:`FIGURES`; None where no kept record has one of its values."""
    data = FIGURES[name]
    records = {setting.name: records_of(setting) for setting in study.settings}
    sites = drawn_sites([one for found in records.values() for one in found], data)
    values = drawn_values(data)
    lines = {
        (setting, value, site): line
        for setting, found in records.items()
        for value in values
        for site in sites
        if (line := mean_line(found, data.part, site, value))
    }
    if not lines:
        return None
    rows = [value for value in values if any(key[1] == value for key in lines)]
    drawn = {
        setting.name: style(study.names.index(setting.name))
        for setting in study.settings
        if any(key[0] == setting.name for key in lines)
    }
    text = f"{data.title}. Means over seeds, at up to {MOST_SITES} places."
    return Figure(
        name,
        text,
        _draw(name, lines, drawn, rows, sites),
        ("setting", "value", "update", *sites),
        list(_data(lines, drawn, rows, sites)),
    )


def drawn_sites(records: Sequence[TrainingRecord], data: FigureData) -> list[str]:
    """Up to four places that have one of the values, spread from the first to the last."""
    names = set(data.names)
    places = dict.fromkeys(
        place
        for record in records
        for place in record.places(data.part)
        if any(names & set(line[data.part].get(place, ())) for line in record.updates)
    )
    wanted = [place for place in places if place.startswith(data.stack)] or list(places)
    if len(wanted) <= MOST_SITES:
        return wanted
    steps = np.linspace(0, len(wanted) - 1, MOST_SITES).round().astype(int)
    return [wanted[step] for step in steps]


def drawn_values(data: FigureData) -> list[Value]:
    """The values of a figure; of those over channels some quantiles."""
    levels = [LEVELS.index(level) for level in DRAWN_LEVELS] if data.by_channel else [None]
    return [(name, level) for name in data.names for level in levels]


def mean_line(records: Sequence[TrainingRecord], part: str, place: str, value: Value) -> Line:
    """The mean over records, at the updates where each of them has the value.

    A value that was not finite is None, alone or as one of several quantiles.
    """
    name, level = value

    def of(line: dict[str, Any]) -> float | None:
        found = line[part].get(place, {}).get(name)
        quantile: float | None = found if level is None or found is None else found[level]
        return quantile

    lines = [
        {line["update"]: found for line in record.updates if (found := of(line)) is not None}
        for record in records
    ]
    shared = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
    return {update: float(np.mean([line[update] for line in lines])) for update in shared}


def short_place(path: str) -> str:
    """``encoder.layers.0.self_attn_layer_norm`` is ``encoder 1 self``."""
    attributes = {attribute: branch for branch, attribute in SLOTS.items()}
    words = path.split(".")
    if "layers" in words:
        at = words.index("layers")
        words[at : at + 2] = [str(int(words[at + 1]) + 1)]
    words[-1] = attributes.get(words[-1], words[-1].replace("layer_norm", "final"))
    return " ".join(words)


def short_value(value: Value) -> str:
    """The label of a row of panels."""
    name, level = value
    words = name.replace("_gradient_", " gradient\n").replace("distance_", "distance,\n")
    return words if level is None else f"{name}\n{LEVELS[level]:.0%} quantile"


def _draw(
    name: str,
    lines: dict[Key, Line],
    settings: dict[str, dict[str, Any]],
    values: Sequence[Value],
    sites: Sequence[str],
) -> str:
    """settings: the look of their lines, by name."""

    def plot(grid: Any) -> None:
        handles = {}
        for (setting, value, site), line in lines.items():
            axes = grid[values.index(value), sites.index(site)]
            look = {**settings[setting], "linewidth": 1}
            (handles[setting],) = axes.plot(line.keys(), line.values(), **look)
        for row, value in enumerate(values):
            of_row = [line for (_, name, _), line in lines.items() if name == value]
            numbers = [number for line in of_row for number in line.values()]
            if min(numbers) > 0 and max(numbers) > LOGARITHMIC * min(numbers):
                grid[row, 0].set_yscale("log")
            grid[row, 0].set_ylabel(short_value(value), fontsize=8)
        for column, site in enumerate(sites):
            grid[0, column].set_title(short_place(site), fontsize=8)
            grid[-1, column].set_xlabel("updates", fontsize=8)
        for axes in grid.flat:
            axes.tick_params(labelsize=7)
            axes.minorticks_off()  # each would be an element of the file
        legend_below(grid[0, 0], {setting: handles[setting] for setting in settings})

    height = 0.5 + 1.35 * len(values) + legend_height(list(settings))
    return draw(plot, height, name, (len(values), len(sites)))


def _data(
    lines: dict[Key, Line],
    settings: Iterable[str],
    values: Sequence[Value],
    sites: Sequence[str],
) -> Iterable[tuple[Any, ...]]:
    """A row for each setting, value and update; empty where a site lacks the value."""
    for setting in settings:
        for value in values:
            found = [lines.get((setting, value, site), {}) for site in sites]
            name = value[0] if value[1] is None else f"{value[0]}_{LEVELS[value[1]]:g}"
            for update in sorted(set().union(*found)):
                cells = (line.get(update) for line in found)
                yield (setting, name, update, *(c if c is None else f"{c:.4g}" for c in cells))
