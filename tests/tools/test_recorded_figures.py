"""The numbers that docs/papers.md has of recorded runs."""

from __future__ import annotations

import json
import statistics
import zipfile
from pathlib import Path

from recorded_figures import DIFFERENCES, LINES, recorded_figures_table

FOLDER = Path(__file__).resolve().parents[2] / "results" / "multi30k_cpu"
SITES = (
    "encoder.layers.0.self_attn_layer_norm",
    "encoder.layers.1.final_layer_norm",
    "encoder.layers.2.final_layer_norm",
    "encoder.layer_norm",
)


def mean_of(norm: str, value: str, part: slice) -> float:
    """Over both seeds, the four sites and a part of the updates, from the kept files."""
    numbers = []
    with zipfile.ZipFile(FOLDER / "statistics.zip") as archive:
        for seed in (1, 2):
            text = archive.read(f"{norm}-seed{seed}.statistics.json")
            sites = json.loads(text)["record"]["sites"]
            numbers += [number for site in SITES for number in sites[site][value][part]]
    return statistics.mean(numbers)


def test_rows_are_means_of_the_kept_files():
    lines = recorded_figures_table(FOLDER).splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) == len(LINES) + len(DIFFERENCES)
    second, last = slice(7, 14), slice(68, 75)  # of 75 updates
    variance = rows[LINES.index(("powernorm-2", "distance_variance", "batchnorm"))]
    for cell, part in zip(variance[3:5], (second, last)):
        assert cell.split()[0] == f"{mean_of('batchnorm', 'distance_variance', part):.2g}"
    less = mean_of("powernorm-v", "distance_square", second)
    less -= mean_of("batchnorm", "distance_variance", second)
    assert rows[len(LINES)][3].split()[0] == f"{less:.2g}"
    assert {row[6] for row in rows} == {"2"}
