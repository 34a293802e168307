"""What the papers report beside results: scores, claims and figures."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path

from norm_lab.results.result import SCHEMA, write_result
from norm_plugin.norms import NORM_TYPES
from papers import (
    DIFFERENCES,
    LINES,
    NORMS,
    PUBLISHED,
    recorded_figures_table,
    reproduction_table,
)

ROOT = Path(__file__).resolve().parents[2]


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_every_published_score_is_of_a_norm_of_ours():
    for papers in PUBLISHED.values():
        assert all(len(scores) == len(NORMS[paper]) for paper, scores in papers.items())
    names = {norm.partition(" ")[0] for norms in NORMS.values() for norm in norms}
    assert names <= set(NORM_TYPES)


# ---- AdaNorm's scores and claims on classification ------------------------------------------


def write_rt(folder, **scores):
    """Results of the norms of the claims on three splits of RT: 75, 76, 77 but for ``scores``."""
    for norm in NORMS["adanorm"]:
        for seed, score in enumerate(scores.get(norm.replace("-", "_"), (75.0, 76.0, 77.0)), 1):
            data = {"corpus": "rt", "checksum": f"of {seed}", "settings": {"split_seed": seed}}
            data["training_pairs"] = 10**9  # the splits hardly overlap
            result = {"schema": SCHEMA, "experiment": "rt", "norm": norm, "seed": seed}
            result["run"] = {"arm": {"norm": norm, "placement": "pre"}}
            result |= {"metric": "accuracy", "data": data}
            result["scores"] = {"accuracy": {"score": score, "sentences": 100}}
            result["settings"] = {"model": {"norm_placement": "pre"}}
            write_result(result, folder)


def test_the_two_intervals(tmp_path):
    write_rt(tmp_path, none=(70.0, 70.1, 70.2))
    none, layernorm = rows(reproduction_table("rt", tmp_path))[2:4]
    # deviation 1, t 4.303 for 2 degrees of freedom: 4.303 / sqrt(3), and 4.303 * sqrt(1 + 1 / 3)
    assert layernorm[:6] == ["`layernorm`", "77.21", "76.00", "3", "73.52 to 78.48", "yes"]
    assert layernorm[6:] == ["71.03 to 80.97", "yes"]
    assert none[5] == "no"


# ---- PowerNorm's figures of statistics over training ----------------------------------------

FOLDER = ROOT / "results" / "multi30k_cpu"
FIRST_NORM = "encoder.layers.0.self_attn_layer_norm"


def mean_of(norm: str, value: str, part: slice) -> float:
    """Over both seeds and a part of the updates, at the first norm, from the kept files."""
    numbers = []
    with gzip.open(FOLDER / "outputs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["norm"] == norm and line["seed"] in (1, 2):
                numbers += line["statistics"]["record"]["sites"][FIRST_NORM][value][part]
    return statistics.mean(numbers)


def test_rows_of_figures_are_means_of_the_kept_files():
    table = rows(recorded_figures_table(FOLDER))[2:]
    assert len(table) == len(LINES) + len(DIFFERENCES)
    second, last = slice(7, 14), slice(68, 75)  # of 75 updates
    variance = table[LINES.index(("powernorm-2", "distance_variance", "batchnorm"))]
    for cell, part in zip(variance[3:5], (second, last)):
        assert cell.split()[0] == f"{mean_of('batchnorm', 'distance_variance', part):.2g}"
    less = mean_of("powernorm-v", "distance_square", second)
    less -= mean_of("batchnorm", "distance_variance", second)
    assert table[len(LINES)][3].split()[0] == f"{less:.2g}"
    assert {row[6] for row in table} == {"2"}
