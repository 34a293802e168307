"""Read the statistics over training that ``--norm-record`` has written, as tables.

``norm_plugin/models/recording/measures.py`` defines the values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from norm_lab.config.spec import result_name
from norm_lab.report.figure import (
    DASHES,
    MOST_LINES,
    SMALL,
    Figure,
    figure,
    legend_below,
    legend_height,
    repeats,
    styles_by_arm,
)
from norm_lab.report.parsers import records_parser
from norm_lab.results.folder import read_folder
from norm_lab.results.statistics import record_lines, to_columns
from norm_lab.study.study import Study
from norm_plugin.io.command_line import CommandError, UsageError, did_you_mean
from norm_plugin.models.recording import LEVELS
from norm_plugin.models.sites import STOCK_NORMS

LOGARITHMIC = 20
"""A row of panels has a logarithmic axis if its values span more than this factor."""


def small_multiples(study: Study, name: str, what: Recorded) -> Figure | None:
    """Return a figure of recorded statistics: one row of panels per value, up to four places.

    A line is the mean over the seeds of an arm, at the updates that all its records have. More than
    six arms need more rows, each with the baseline. The figures of the PowerNorm paper show the
    encoder; the norm of the paper is its first norm.
    """
    values = recorded(study.runs, what)
    places = drawn_places(values, what)
    values = values[values["place"].isin(places)]
    records = values.attrs["records"]
    means = values.groupby(["arm", "value", "place", "update"], sort=False)["number"]
    lines = means.agg(["mean", "size"]).reset_index()
    lines = lines[lines["size"] == lines["arm"].map(records)]
    if lines.empty:
        return None
    shown = [value for value in what.values if value in set(lines["value"])]
    arms = [arm for arm in study.arms if arm in set(lines["arm"])]
    first = [arm for arm in arms if arm == study.baseline]
    others, step = arms[len(first) :], MOST_LINES - len(first)
    groups = [first + others[at : at + step] for at in range(0, max(1, len(others)), step)]
    rows = [(value, group) for value in shown for group in groups]
    styles = {arm: {**styles_by_arm(study)[arm], "linewidth": 1} for arm in arms}
    for arm, before in repeats(styles).items():
        if before:  # the same norm under another placement
            styles[arm]["linestyle"] = DASHES[(DASHES.index(styles[arm]["linestyle"]) + before) % 6]

    def plot(grid: Any) -> None:
        handles = {}
        for (value, group), panels_of_row in zip(rows, grid):
            of_row = lines[(lines["value"] == value) & lines["arm"].isin(group)]
            for (arm, place), line in of_row.groupby(["arm", "place"], sort=False):
                line = line.sort_values("update")
                axes = panels_of_row[places.index(place)]
                (handles[arm],) = axes.plot(line["update"], line["mean"], **styles[arm])
            least, largest = of_row["mean"].min(), of_row["mean"].max()
            if 0 < least < largest / LOGARITHMIC:
                panels_of_row[0].set_yscale("log")
            panels_of_row[0].set_ylabel(short_value(value), fontsize=SMALL - 1.5)
        for place, top, bottom in zip(places, grid[0], grid[-1]):
            top.set_title(short_place(place), fontsize=SMALL - 1)
            bottom.set_xlabel("updates", fontsize=SMALL - 1)
        for axes in grid.flat:
            axes.tick_params(labelsize=SMALL - 2)
            axes.minorticks_off()  # for smaller files
        legend_below(grid[0, 0], {study.shown(a): handles[a] for a in arms if a in handles})

    height = 0.5 + 1.35 * len(rows) + legend_height([study.shown(arm) for arm in arms])
    ordered = lines.assign(
        arm=pd.Categorical(lines["arm"], arms), value=pd.Categorical(lines["value"], shown)
    )
    data = ordered.pivot(index=["arm", "value", "update"], columns="place", values="mean")
    data = data.reindex(columns=places).map(lambda number: float(f"{number:.4g}"))
    data = data.sort_index().reset_index()
    data["arm"] = data["arm"].astype(str).map(study.shown)
    inside = bool(what.stack) and all(place.startswith(what.stack) for place in places)
    source = f" Compare {what.source}." if what.source and inside else ""
    text = f"{what.title}: means over seeds, at up to four places.{source}"
    options = {"sharex": True, "sharey": "row"}
    return Figure(name, text, data, plot, height, (len(rows), len(places)), options)


SITES, LAYERS = "sites", "layers"
DRAWN_LEVELS = (0.05, 0.5, 0.95)
"""The quantiles over channels that are drawn."""
MOST_PLACES = 4


@dataclass(frozen=True)
class Recorded:
    """The recorded values of a figure.

    Attributes:
        title: the start of a caption.
        part: the part of a record, SITES or LAYERS.
        stack: the stack that is drawn; empty for both.
        by_channel: whether the values are quantiles over channels.
        source: the figure of a paper with the same values, of another model.
    """

    title: str
    part: str
    names: tuple[str, ...]
    stack: str = ""
    by_channel: bool = False
    source: str = ""

    @property
    def values(self) -> list[str]:
        """The names of the values that are drawn, one for each quantile."""
        if not self.by_channel:
            return list(self.names)
        return [f"{name}_{level:g}" for name in self.names for level in DRAWN_LEVELS]


RECORDED: dict[str, Recorded] = {
    "powernorm-2": Recorded(
        "Distance of batch and running mean and variance",
        SITES,
        ("distance_mean", "distance_variance"),
        "encoder",
        source="the PowerNorm paper, Figure 2",
    ),
    "powernorm-3": Recorded(
        "Gradient parts of mean and variance",
        SITES,
        ("g_mu", "g_sigma2"),
        "encoder",
        source="the PowerNorm paper, Figure 3",
    ),
    "powernorm-4": Recorded(
        "Variance against quadratic mean: distances, and gradient parts",
        SITES,
        ("distance_variance", "distance_square", "g_sigma2", "g_psi2"),
        "encoder",
        source="the PowerNorm paper, Figure 4",
    ),
    "powernorm-7": Recorded(
        "Gamma / psi_B over the channels",
        SITES,
        ("gamma_over_psi",),
        "encoder",
        by_channel=True,
        source="the PowerNorm paper, Figure 7",
    ),
    "layers": Recorded(
        "Hidden states and gradients by layer",
        LAYERS,
        ("hidden_rms", "hidden_gradient_norm", "fc2.weight_gradient_norm"),
    ),
}
"""The recorded values by the name of the figure."""


def read_record(path: Path) -> dict[str, Any]:
    """Return the record in a file of ``--norm-record``, or in the result of a run.

    It has the form of :func:`norm_lab.results.statistics.to_columns`.

    Raises:
        CommandError: the file is missing, has no records, or has another version.
    """
    if path.suffix != ".json":
        return to_columns(record_lines(path), digits=None)
    runs = read_folder(path.parent).finished
    named = [run for run in runs if result_name(run["norm"], run["seed"]) == path.name]
    if not named:
        raise CommandError(f"{path.parent} has no result {path.name}")
    record = record_of(named[0])
    if record is None:
        raise CommandError(f"{path} has no record, since the run had no --norm-record")
    return record


def values_of(record: Mapping[str, Any], names: Sequence[str], part: str = SITES) -> pd.DataFrame:
    """Return the values ``names`` in a part of a record: columns ``update``, ``place`` and names.

    A value over channels has one column per quantile: ``batch_mean_0.5`` is the median.
    """
    tables = [pd.DataFrame(columns=["update", "place"])]
    for place, columns in record[part].items():
        own = [_number_columns(name, columns[name]) for name in names if name in columns]
        if own:
            numbers = pd.DataFrame(dict(chain(*own)), dtype=float)
            tables.append(numbers.assign(update=record["updates"], place=place))
    table = pd.concat(tables[1:] or tables, ignore_index=True)
    values = [name for name in table if name not in ("update", "place")]
    return table[["update", "place", *values]].dropna(how="all", subset=values, ignore_index=True)


def _number_columns(name: str, values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield a recorded value as a column, or one over channels as a column for each quantile."""
    if not any(isinstance(value, list) for value in values):
        yield name, values
        return
    rows = [value or [None] * len(LEVELS) for value in values]
    for level, quantile in zip(LEVELS, zip(*rows)):
        yield f"{name}_{level:g}", list(quantile)


def statistics_of(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the stored statistics of a run, given its row of the table of runs, or None."""
    statistics = run.get("statistics")
    return statistics if isinstance(statistics, dict) else None


def record_of(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the stored record of ``--norm-record`` of a run, or None."""
    return (statistics_of(run) or {}).get("record")


def recorded(runs: pd.DataFrame, what: Recorded) -> pd.DataFrame:
    """Return the drawn values of all runs of a study with a record.

    Returns:
        columns ``arm``, ``seed``, ``place``, ``value``, ``update`` and ``number``;
        ``attrs["records"]`` is the number of records of each arm.
    """
    tables = [pd.DataFrame(columns=["arm", "seed", "update", "place", "value", "number"])]
    counts: Counter[str] = Counter()
    for run in runs.to_dict("records"):
        record = record_of(run)
        if record is None:
            continue
        counts[run["arm"]] += 1
        table = values_of(record, what.names, what.part)
        drawn = [value for value in what.values if value in table]
        table = table.melt(["update", "place"], drawn, "value", "number").dropna()
        if not table.empty:
            tables.append(table.assign(arm=run["arm"], seed=run["seed"]))
    values = pd.concat(tables[1:] or tables, ignore_index=True)
    values.attrs["records"] = counts
    return values


def drawn_places(values: pd.DataFrame, what: Recorded) -> list[str]:
    """Return up to four places in a table of recorded values, evenly spaced."""
    places = list(dict.fromkeys(values["place"]))
    wanted = [place for place in places if place.startswith(what.stack)] or places
    if len(wanted) <= MOST_PLACES:
        return wanted
    steps = np.linspace(0, len(wanted) - 1, MOST_PLACES).round().astype(int)
    return [wanted[step] for step in steps]


def short_place(path: str) -> str:
    """Return a short name: ``encoder 1 self`` for ``encoder.layers.0.self_attn_layer_norm``."""
    attributes = {attribute: branch for branch, attribute in STOCK_NORMS.items()}
    parts = path.split(".")
    if "layers" in parts:
        at = parts.index("layers")
        parts[at : at + 2] = [str(int(parts[at + 1]) + 1)]
    parts[-1] = attributes.get(parts[-1], parts[-1].replace("layer_norm", "final"))
    return " ".join(parts)


def short_value(value: str) -> str:
    """Return the label of a row of panels."""
    name, _, level = value.rpartition("_")
    if level.replace(".", "").isdecimal():
        return f"{name}\n{float(level):.0%} quantile"
    return value.replace("_gradient_", " gradient\n").replace("distance_", "distance,\n")


def summary(record: Mapping[str, Any]) -> str:
    """Return a description of a record."""
    updates = record["updates"]
    lines = [
        f"{len(updates)} records of updates {updates[0]} to {updates[-1]}, every "
        f"{record['every']}, at {len(record['channels'])} norms",
        record["norms"],
        "--figure prints the data of:",
    ]
    for name, what in RECORDED.items():
        lines.append(f"    {name}: {what.title}{f' ({what.source})' if what.source else ''}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``records``."""
    args = records_parser().parse_args(argv)
    if args.figure not in (None, *RECORDED):
        raise UsageError(f"there is no figure {args.figure}; {did_you_mean(args.figure, RECORDED)}")
    record = read_record(args.file)
    if args.figure is None:
        print(summary(record))
        return 0
    what = RECORDED[args.figure]
    places = list(record[what.part])
    for prefix in args.sites:
        if not any(place.startswith(prefix) for place in places):
            raise CommandError(f"{args.file} has no {prefix}; it has {', '.join(places)}")
    values = values_of(record, what.names, what.part)
    values = values[values["place"].str.startswith(tuple(args.sites or [""]))]
    if values.empty:
        raise CommandError(
            f"{args.file} has no {', '.join(what.names)}: its norms ({record['norms']}) lack them"
        )
    values = values.rename(columns={"place": what.part.removesuffix("s")})
    print(values.sort_values("update", kind="stable").to_csv(index=False), end="")
    return 0


for name, what in RECORDED.items():
    figure(name, "statistics")(partial(small_multiples, name=name, what=what))
