"""The PowerNorm paper's figures of statistics over training, as numbers of recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from norm_plugin.analysis.records import RECORDED, drawn_places, recorded
from norm_plugin.analysis.stats import describe
from norm_plugin.analysis.study import markdown, read_study

PARTS = 10
"""The updates are cut into so many parts. In the first, running statistics leave their start."""
LINES = (
    ("powernorm-2", "distance_mean", "batchnorm"),
    ("powernorm-2", "distance_variance", "batchnorm"),
    ("powernorm-3", "g_mu", "batchnorm"),
    ("powernorm-3", "g_sigma2", "batchnorm"),
    ("powernorm-4", "distance_square", "powernorm-v"),
    ("powernorm-4", "g_psi2", "powernorm-v"),
    ("powernorm-4", "distance_square", "powernorm-layer-scale-groups-0"),
    ("powernorm-7", "gamma_over_psi_0.95", "powernorm-v"),
)
"""Figure, value and norm: those with a running form of the value, and one without layer-scale."""
DIFFERENCES = {
    ("powernorm-4", "distance_square"): ("powernorm-2", "distance_variance"),
    ("powernorm-4", "g_psi2"): ("powernorm-3", "g_sigma2"),
}
"""What Figure 4 sets side by side: of ``powernorm-v`` less of ``batchnorm``."""


def recorded_figures_table(folder: Path) -> str:
    """Markdown: a row for each line and each difference, means over the sites that are drawn."""
    study = read_study([folder])
    runs = study.runs.assign(arm=study.runs["norm"])
    lines = {line: _line(runs, *line) for line in LINES}
    rows = [
        {
            "figure": figure.rpartition("-")[2],
            "value": f"`{value}`",
            "norm": f"`{norm}`",
            **_summary(_tenths(line)),
            "sites at the end": "{:.2g} to {:.2g}".format(*_sites(line)),
            "largest": f"{line.groupby(['place', 'update'])['number'].mean().max():.3g}",
        }
        for (figure, value, norm), line in lines.items()
    ]
    for (figure, value), (other, less) in DIFFERENCES.items():
        tenths = _tenths(lines[figure, value, "powernorm-v"])
        differences = tenths - _tenths(lines[other, less, "batchnorm"])
        rows.append(
            {
                "figure": figure.rpartition("-")[2],
                "value": f"`{value}` less `{less}`",
                "norm": "`powernorm-v` less `batchnorm`",
                **_summary(differences),
                "sites at the end": "-",
                "largest": "-",
            }
        )
    return markdown(pd.DataFrame(rows))


def _line(runs: pd.DataFrame, figure: str, value: str, norm: str) -> pd.DataFrame:
    """What the figure draws of one value of one norm."""
    what = RECORDED[figure]
    values = recorded(runs[runs["norm"] == norm], what)
    drawn = values["place"].isin(drawn_places(values, what)) & (values["value"] == value)
    return values[drawn].astype({"number": float})


def _tenths(line: pd.DataFrame) -> pd.DataFrame:
    """Means over the sites and the updates of the second and the last part, a row a seed."""
    updates = sorted(line["update"].unique())
    size = len(updates) // PARTS
    parts = {"second tenth": updates[size : 2 * size], "last tenth": updates[-size:]}
    return pd.DataFrame(
        {
            name: line[line["update"].isin(part)].groupby("seed")["number"].mean()
            for name, part in parts.items()
        }
    )


def _summary(tenths: pd.DataFrame) -> dict[str, str]:
    """Mean and 95 % interval over seeds of both parts and of their change."""
    second, last = (tenths[name].tolist() for name in tenths)
    change = (tenths["last tenth"] - tenths["second tenth"]).tolist()
    return {
        "second tenth": _interval(second),
        "last tenth": _interval(last),
        "change": _interval(change),
        "n": str(len(tenths)),
    }


def _interval(values: Sequence[float]) -> str:
    sample = describe(values)
    if sample.count == 1:
        return f"{sample.mean:.2g}"
    return "{:.2g} ({:.2g} to {:.2g})".format(sample.mean, *sample.interval)


def _sites(line: pd.DataFrame) -> tuple[float, float]:
    """The least and the largest mean of a site over the last part."""
    updates = sorted(line["update"].unique())
    last = line[line["update"].isin(updates[-(len(updates) // PARTS) :])]
    means = last.groupby("place")["number"].mean()
    return means.min(), means.max()
