"""The score of every placement of a deep stack, with the gradients of its first and last layer."""

from __future__ import annotations

from pathlib import Path

from norm_lab.metrics import find_metric
from norm_lab.report.records import RECORDED, recorded
from norm_lab.report.text import markdown
from norm_lab.results.table import read_results
from norm_plugin.placements import PLACEMENTS

GRADIENT = "fc2.weight_gradient_norm"


def layer_gradients_table(folder: Path) -> str:
    """Return Markdown: one row per placement, means over its seeds.

    A gradient is that of the second FFN matrix, as a norm, in the first or last recorded update.
    """
    runs = read_results(folder)
    runs = runs.assign(arm=runs["placement"])
    values = recorded(runs, RECORDED["layers"])
    gradients = values[values["value"] == GRADIENT].astype({"number": float, "update": int})
    layers = list(dict.fromkeys(gradients["place"]))
    means = gradients.pivot_table("number", "arm", ["update", "place"])
    metric = find_metric(runs["metric"].iloc[0])
    table = runs.groupby("arm")[["score"]].mean().map(metric.text)
    for update in sorted(set(gradients["update"])):
        for number, place in ((1, layers[0]), (len(layers), layers[-1])):
            table[f"update {update}, layer {number}"] = means[update, place].map("{:.2g}".format)
    table = table.reindex([name for name in PLACEMENTS if name in table.index])
    table = table.rename(index="`{}`".format, columns={"score": metric.title})
    return markdown(table.reset_index(names="placement"), ["---", *["---:"] * len(table.columns)])
