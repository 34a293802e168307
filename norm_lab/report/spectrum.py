"""The figure of the singular values of the embeddings (PowerNorm paper, Figure 6).

They are divided by the largest one of their embedding, so that they show how fast the others decay.
The paper plots those of the shared embedding of IWSLT14; without shared embeddings there is one
line per side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from norm_lab.report.figure import (
    Figure,
    figure,
    legend_below,
    legend_height,
    styles_by_arm,
)
from norm_lab.report.records import statistics_of
from norm_lab.study.study import Study


@figure("spectrum", "statistics")
def spectrum(study: Study) -> Figure | None:
    """Return the singular values of the embeddings, one line per arm and side, as seed means."""
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
