"""The score against the batch of the statistics (PowerNorm paper, Figure 5)."""

from __future__ import annotations

from typing import Any

from norm_plugin.analysis.figures import Figure, draw, legend_below, legend_height, style
from norm_plugin.analysis.seeds import Sample, describe
from norm_plugin.analysis.study import Setting, Study
from norm_plugin.experiments.naming import run_label

KEY = "norm_stat_tokens"
Points = list[tuple[int, Sample]]


def family(setting: Setting) -> str:
    """The name of the setting without ``--norm-stat-tokens``, which its line shares."""
    run = setting.runs[0]
    rest = {key: v for key, v in run.get("differs", {}).items() if not key.endswith(KEY)}
    norm = run["settings"]["model"].get("norm_type") or run["norm"]
    return f"{run_label(norm, rest)}, {setting.placement}"


def tokens_of(setting: Setting) -> int | None:
    """Over how many tokens the statistics of a setting are; those of a batch where none is given.

    None where the result does not say how large a batch is.
    """
    settings = setting.runs[0]["settings"]
    tokens = settings["model"].get(KEY) or settings["dataset"].get("max_tokens")
    return None if tokens is None else int(tokens)


def stat_tokens_figure(study: Study) -> Figure | None:
    """A line for each norm that was trained with several batches of its statistics."""
    lines: dict[str, Points] = {}
    for setting in study.settings:
        if (tokens := tokens_of(setting)) is not None:
            lines.setdefault(family(setting), []).append((tokens, describe(setting.scores)))
    lines = {name: sorted(points, key=_tokens) for name, points in lines.items() if len(points) > 1}
    if not lines:
        return None

    def plot(axes: Any) -> None:
        for place, (name, points) in enumerate(lines.items()):
            tokens, samples = zip(*points)
            axes.plot(tokens, [one.mean for one in samples], "o", **style(place), label=name)
            for at, sample in points:
                if sample.interval:
                    axes.plot([at, at], sample.interval, color=style(place)["color"], linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens of the batch statistics")
        axes.set_ylabel(study.baseline.metric.title)
        legend_below(axes)

    return Figure(
        "stat-tokens",
        f"{study.baseline.metric.title} against the batch of the statistics: mean over seeds and "
        "its 95 % interval (PowerNorm paper, Figure 5).",
        draw(plot, 3.4 + legend_height(list(lines)), "stat-tokens"),
        ("setting", "tokens", "seeds", "mean", "low", "high"),
        [
            (name, tokens, sample.count, sample.mean, *(sample.interval or (None, None)))
            for name, points in lines.items()
            for tokens, sample in points
        ],
    )


def _tokens(point: tuple[int, Sample]) -> int:
    return point[0]
