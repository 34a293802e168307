"""Results of runs, made up, as they lie in a folder of results."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from norm_plugin.experiments.results import SCHEMA, write_result

SECTIONS = ("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")


def made_up(norm="layernorm", seed=1, bleu=35.0, placement="pre", **changes) -> dict[str, Any]:
    """A result; ``changes`` replace what stands under their names, such as data__checksum."""
    result = {
        "schema": SCHEMA,
        "experiment": f"toy_{placement}",
        "norm": norm,
        "seed": seed,
        "split": "test",
        "metric": "bleu",
        "scores": {"tokenized": {"score": bleu, "label": "fairseq BLEU4"}},
        "model": {"parameters": 1234567, "norm_parameters": 512},
        "training": {
            "updates": 60,
            "seconds": 120.0,
            "updates_per_second": 0.5,
            "best_valid": {"metric": "loss", "value": 3.5 + seed / 100},
        },
        "curves": {
            "train": [{"epoch": 1, "updates": 30, "loss": 9.0 + seed}, {"epoch": 2, "updates": 60}],
            "valid": [{"epoch": 1, "updates": 30, "loss": 8.0 + seed}],
        },
        "settings": {
            **{section: {"key": 1} for section in SECTIONS},
            "model": {"norm_placement": placement},
        },
        "data": {"corpus": "toy", "checksum": "c0ffee" * 10, "training_pairs": 1000},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "versions": {"torch": "2.13.0"},
        "date": "2026-01-01T00:00:00Z",
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = result
        for parent in parents:
            place = place[parent]
        place[last] = value
    return copy.deepcopy(result)


def folder_of(tmp_path: Path, *results: dict[str, Any]) -> list[Path]:
    """The folders into which these results were written."""
    return sorted({write_result(result, tmp_path).parent for result in results})


def study_of_three(tmp_path: Path) -> list[Path]:
    """Three seeds of layernorm, of one norm that is as good and of one that is far better."""
    scores = {"layernorm": (35.0, 35.3, 34.9), "alike": (35.1, 34.8, 35.2), "far": (38, 38.4, 38.1)}
    runs = [
        made_up(norm, seed, bleu)
        for norm, values in scores.items()
        for seed, bleu in enumerate(values, start=1)
    ]
    return folder_of(tmp_path, *runs)
