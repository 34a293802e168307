"""The table of deep stacks, against the published records read by hand."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path

from layer_gradients import GRADIENT, layer_gradients_table

RESULTS = Path(__file__).resolve().parents[2] / "results" / "deep_stacks"


def test_a_row_has_the_score_and_the_gradients_of_the_outermost_layers():
    name = "layernorm-post-decoder-layers-24-max-update-300"
    with gzip.open(RESULTS / "outputs.jsonl.gz", "rt", encoding="utf-8") as lines:
        outputs = [line for line in map(json.loads, lines) if line["norm"] == name]
    records = [line["statistics"]["record"] for line in outputs]
    text = (RESULTS / "runs.jsonl").read_text(encoding="utf-8")
    shared, *runs = map(json.loads, text.splitlines())
    score = "scores.loss.score"
    scores = [(shared | run)[score] for run in runs if run["norm"] == name]
    cells = [
        sum(record["layers"][f"decoder.layers.{layer}"][GRADIENT][at] for record in records)
        / len(records)
        for at in (0, -1)
        for layer in (0, 23)
    ]
    expected = ["`post`", f"{statistics.mean(scores):.3f}", *map("{:.2g}".format, cells)]
    assert f"| {' | '.join(expected)} |" in layer_gradients_table(RESULTS).splitlines()
