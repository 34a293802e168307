"""All figures of a report; a figure is a function of a study with the decorator ``figure``.

The verdicts are in ``forest.py``, the losses over training in ``curves.py``, and recorded
statistics in ``records.py``. The others are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from norm_lab.report import forest  # noqa: F401  registers its figures
from norm_lab.report.curves import BAND, Panel, curves_in_panels, interval_of_means, panels
from norm_lab.report.figure import (
    INK,
    Figure,
    figure,
    legend_below,
    legend_height,
    repeats,
    style,
    styles_by_arm,
)
from norm_lab.report.records import statistics_of
from norm_lab.study.arms import name_of_arm
from norm_lab.study.comparisons import outcome_values, split_ratio
from norm_lab.study.significance import describe
from norm_lab.study.study import Study
from norm_lab.study.tuning import Tuned


@figure("speed", "speed")
def speed(study: Study) -> Figure | None:
    """Return the score against training time, or None if times are not comparable."""
    if not study.times_comparable:
        return None
    title = study.metric.title
    arms = study.runs.groupby("arm", sort=False)
    minutes = arms["training.seconds"].mean(skipna=False) / 60
    points = pd.DataFrame({"minutes": minutes, "score": arms["score"].mean()})
    points = points.rename_axis("arm").dropna(subset="minutes").reset_index()
    points["arm"] = points["arm"].map(study.shown)
    styles = {study.shown(arm): line_style for arm, line_style in styles_by_arm(study).items()}
    before = repeats(styles)

    def plot(axes: Any) -> None:
        for arm, minutes, score in points.itertuples(index=False):
            line_style = {"color": styles[arm]["color"], "marker": "os^Dv"[before[arm] % 5]}
            axes.plot([minutes], [score], linestyle="", **line_style, label=arm)
        legend_below(axes)
        axes.set(xlabel="minutes of training", ylabel=title)

    return Figure(
        "speed",
        f"{title} against the training time, means over seeds.",
        points,
        plot,
        height=3.6,
    )


@figure("spectrum", "statistics")
def spectrum(study: Study) -> Figure | None:
    """Return the singular values of the embeddings, one line per arm and side, as seed means.

    They are divided by the largest one of their embedding, so that they show how fast the others
    decay. The PowerNorm paper plots those of the shared embedding of IWSLT14.
    """
    seeds: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for run in study.runs.to_dict("records"):
        for entry in (statistics_of(run) or {}).get("spectra", []):
            values = np.array(entry["values"])
            seeds.setdefault((run["arm"], entry["side"]), []).append(values / values[0])
    if not seeds:
        return None
    curves, tables, styles = [], [], styles_by_arm(study)
    for (arm, side), of_seeds in seeds.items():
        mean, own_style, arm = np.mean(of_seeds, axis=0), styles[arm], study.shown(arm)
        own_style = {**own_style}
        if side == "decoder":  # same color as the encoder
            own_style["linewidth"] = 0.8
        curves.append((arm if side == "shared" else f"{arm}, {side}", mean, own_style))
        index, text = range(1, len(mean) + 1), map("{:.5g}".format, mean)
        tables.append(pd.DataFrame({"arm": arm, "side": side, "index": index, "normalized": text}))
    title = "Singular values of the embeddings, divided by the largest: mean over seeds."
    if study.metric.has_item_outputs:
        title += " Compare the PowerNorm paper, Figure 6."

    def plot(axes: Any) -> None:
        for label, values, own_style in curves:
            axes.plot(np.arange(1, len(values) + 1) / len(values), values, **own_style, label=label)
        axes.set(xlabel="index, as a share of all singular values")
        axes.set(ylabel="singular value / largest", yscale="log")
        legend_below(axes)

    height = 3.4 + legend_height([label for label, *_ in curves])
    return Figure("spectrum", title, pd.concat(tables), plot, height)


@dataclass(frozen=True)
class SettingCurve:
    """A figure of the score against a setting, a number that the arms of a study may vary.

    Attributes:
        text: the label of the x axis.
        keys: settings of the model; the first of them that varies.
        otherwise: the column of runs that do not set it.
        source: the figure of a paper with the same axis.
    """

    text: str
    keys: tuple[str, ...]
    otherwise: str = ""
    source: str = ""

    def column(self, runs: pd.DataFrame) -> pd.Series | None:
        """Return the number of each run; None if it does not vary."""
        for key in self.keys:
            column = f"settings.model.{key}"
            if column in runs and runs[column].nunique(dropna=False) > 1:
                given: pd.Series = runs[column]
                return given.fillna(runs[self.otherwise]) if self.otherwise in runs else given
        return None


SETTING_CURVES = {
    "stat-tokens": SettingCurve(
        "tokens of the batch statistics",
        ("norm_ghost_batch_tokens",),
        "settings.dataset.max_tokens",
        "the PowerNorm paper, Figure 5",
    ),
    "depth": SettingCurve("layers", ("decoder_layers", "encoder_layers")),
}


def score_by_setting(study: Study, name: str, curve: SettingCurve) -> Figure | None:
    """Return the score against a number that arms vary, one line per family of arms."""
    numbers = curve.column(study.runs)
    if numbers is None:
        return None
    rows, scores = [], outcome_values(study.runs)
    for _, arm_runs in study.runs.groupby("id", sort=False):
        values = scores[arm_runs.index].dropna().tolist()
        if not values:
            continue
        sample = describe(values, split_ratio(arm_runs))
        run = arm_runs.iloc[0]
        named = name_of_arm(run, (*study.omitted, *(f"model.{key}" for key in curve.keys)))
        family = named.name if len({*study.placements.values()}) > 1 else named.short
        number = numbers[arm_runs.index[0]]
        rows.append((family, number, sample.count, sample.mean, *sample.interval))
    data = pd.DataFrame(rows, columns=["arm", "value", "seeds", "mean", "low", "high"])
    data = data[data["value"].notna() & data["arm"].duplicated(keep=False)].astype({"value": int})
    if data.empty:
        return None
    families = list(dict.fromkeys(data["arm"]))
    data = pd.concat(data[data["arm"] == family].sort_values("value") for family in families)
    values = sorted(data["value"].unique())

    def plot(axes: Any) -> None:
        for place, family in enumerate(families):
            line, line_style = data[data["arm"] == family], style(place)
            axes.plot(line["value"], line["mean"], "o", **line_style, label=family)
            for at, low, high in line[["value", "low", "high"]].dropna().itertuples(index=False):
                axes.plot([at, at], [low, high], color=line_style["color"], linewidth=1)
        axes.set(xscale="log", xlabel=curve.text, ylabel=study.metric.title)
        axes.set_xticks(values, [f"{value:,}" for value in values])
        axes.minorticks_off()  # their labels would overlap
        legend_below(axes)

    source = f" Compare {curve.source}." if curve.source else ""
    return Figure(
        name,
        f"{study.metric.title} against the {curve.text}: mean over seeds and its 95 % interval."
        f"{source}",
        data,
        plot,
        3.4 + legend_height(families),
    )


for name, curve in SETTING_CURVES.items():
    figure(name, "statistics")(partial(score_by_setting, name=name, curve=curve))


def sensitivity_figure(study: Study, tuned: Tuned) -> Figure:
    """Return the outcome of tuning against the tuned key, one line per arm; mark the choice."""
    trials, outcome = tuned.trials, f"least validation loss, {study.metric.loss_unit}"
    diverged = np.isinf(trials["valid_loss"])
    finished = trials[~diverged].sort_values("lr").assign(x=lambda table: table["lr"])
    lines = interval_of_means(finished, ["arm", "lr"], "valid_loss")
    shown = panels({"": {arm: study.shown(arm) for arm in trials["arm"].unique()}})
    values = sorted(trials["lr"].unique())

    def marks(axes: Any, panel: Panel) -> None:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()  # their labels would overlap those of the grid
        for arm in panel.names:
            at = lines[(lines["arm"] == arm) & (lines["x"] == tuned.chosen.get(arm))]
            axes.plot(at["x"], at["mean"], "D", color=INK, markersize=5, zorder=3)
            lost = trials.loc[diverged & (trials["arm"] == arm), "lr"].unique()
            if len(lost):  # an empty line would widen the margins
                top = {"transform": axes.get_xaxis_transform(), "clip_on": False}
                axes.plot(lost, [1.0] * len(lost), "x", color=INK, markersize=6, **top)

    title = (
        f"{outcome[0].upper()}{outcome[1:]} of the trials against {tuned.key}: mean over seeds. "
        f"{BAND} A diamond marks the chosen value, and a cross at the top a value at which a trial "
        "diverged."
    )
    data = lines.drop(columns="x").assign(arm=lines["arm"].map(study.shown))
    labels, styles = (tuned.key, outcome), styles_by_arm(study)
    return curves_in_panels(
        "sensitivity", title, data, lines, shown, labels, styles, more=marks, log=True
    )
