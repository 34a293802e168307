"""The table of deep stacks, against the published records read by hand."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pandas as pd

from layer_gradients import GRADIENT, layer_gradients_table

RESULTS = Path(__file__).resolve().parents[2] / "results" / "deep_stacks"


def test_a_row_has_the_score_and_the_gradients_of_the_outermost_layers():
    name = "layernorm-post-decoder-layers-24-max-update-300"
    runs = pd.read_csv(RESULTS / "runs.csv").query("norm == @name")
    with zipfile.ZipFile(RESULTS / "statistics.zip") as archive:
        files = [f"{name}-seed{seed}.statistics.json" for seed in runs["seed"]]
        records = [json.loads(archive.read(file))["record"] for file in files]
    cells = [
        sum(record["layers"][f"decoder.layers.{layer}"][GRADIENT][at] for record in records)
        / len(records)
        for at in (0, -1)
        for layer in (0, 23)
    ]
    expected = ["`post`", f"{runs['score'].mean():.3f}", *map("{:.2g}".format, cells)]
    assert f"| {' | '.join(expected)} |" in layer_gradients_table(RESULTS).splitlines()
