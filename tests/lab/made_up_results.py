"""Results of runs, made up, as they lie in a folder of results."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from norm_lab.metrics.bleu import score_sacrebleu
from norm_lab.results.result import SCHEMA, write_result
from norm_lab.results.statistics import to_columns
from norm_lab.run.record import parts_of_name

SECTIONS = ("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")


def level(loss: float) -> list[dict[str, float]]:
    """A curve of three points with one loss."""
    return [{"epoch": e, "updates": 20 + 10 * e, "loss": loss} for e in (1, 2, 3)]


def norm_of(name: str, changes: Mapping[str, Any] | None) -> str:
    """The norm at the start of the name of an arm with these changes."""
    if not changes or not isinstance(changes, dict):
        return name
    return name.partition(f"-{parts_of_name(changes)[0]}")[0]


def made_up(norm="layernorm", seed=1, bleu=35.0, placement="pre", **changes) -> dict[str, Any]:
    """Return a result; ``changes`` replace the values under their names, as data__checksum."""
    result = {
        "schema": SCHEMA,
        "run": {"arm": {"norm": norm_of(norm, changes.get("differs", {})), "placement": placement}},
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
            "train": [*level(9.0 + seed), {"epoch": 4, "updates": 60}],
            "valid": level(8.0 + seed),
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


def at_rate(result: dict[str, Any], rate: float) -> dict[str, Any]:
    """The result with a learning rate, which fairseq stores in three sections."""
    sections = dict.fromkeys(("optimization", "optimizer", "lr_scheduler"), {"lr": [rate]})
    return {**result, "settings": {**result["settings"], **sections}}


def write_failure(folder: Path, norm: str, seed: int, state: str = "diverged", **more: Any) -> None:
    """The record of a run without a result, in the place of one."""
    record = {
        "experiment": folder.name,
        "norm": norm,
        "seed": seed,
        "differs": {},
        "state": state,
        "run": {
            "arm": {
                "norm": norm_of(norm, more.get("differs", {})),
                "placement": more.get("differs", {}).get("model.norm_placement", "pre"),
            }
        },
        "stage": "train",
        "reason": "the loss is nan",
        "progress": "40 of 60 updates",
        **more,
    }
    path = folder / f"{norm}-seed{seed}.json"
    path.write_text(json.dumps(record), encoding="utf-8")


def with_statistics(
    result: dict[str, Any], updates: Sequence[int] = (1, 11), **values: float
) -> dict[str, Any]:
    """The result with a record of some updates at two norms, and a spectrum."""
    sites = {f"{side}.layers.0.final_layer_norm": values for side in ("encoder", "decoder")}
    lines = [{"every": 10, "norms": "norms: pre", "sites": dict.fromkeys(sites, 4)}]
    for update in updates:
        layers = {"encoder.layers.0": {"hidden_rms": 1.0 * update}}
        lines.append({"update": update, "sites": sites, "layers": layers})
    spectra = [{"side": "shared", "shape": [9, 2], "values": [4.0, 1.0]}]
    return {**result, "statistics": {"record": to_columns(lines), "spectra": spectra}}


def with_translations(
    result: dict[str, Any], lines: list[str], references: list[str]
) -> dict[str, Any]:
    """The result with translations and their score."""
    score = score_sacrebleu(lines, references, lowercase=False)
    scores = {**result["scores"], "sacrebleu": score}
    return {**result, "scores": scores, "translations": lines}


def write_corpus(folder: Path, references: list[str], checksum: str = "c0ffee" * 10) -> Path:
    """A prepared corpus, as far as the tests on translations read it."""
    (folder / "raw").mkdir(parents=True)
    text = "".join(f"{line}\n" for line in references)
    (folder / "raw" / "test.de").write_text(text, encoding="utf-8")
    manifest = {"checksum": checksum, "target": "de", "settings": {"subword": "sentencepiece"}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def folder_of(tmp_path: Path, *results: dict[str, Any]) -> list[Path]:
    """The folders into which these results were written."""
    return sorted({write_result(of_its_arm(result), tmp_path).parent for result in results})


def of_its_arm(result: dict[str, Any]) -> dict[str, Any]:
    """The result with the norm of its arm, which a test may have given by its name and changes."""
    arm = {**result["run"]["arm"], "norm": norm_of(result["norm"], result.get("differs"))}
    return {**result, "run": {"arm": arm}}


def study_of_three(tmp_path: Path) -> list[Path]:
    """Three seeds of layernorm, of one norm that is as good and of one that is far better."""
    scores = {"layernorm": (35.0, 35.3, 34.9), "alike": (35.1, 34.8, 35.2), "far": (38, 38.4, 38.1)}
    runs = [
        made_up(norm, seed, bleu)
        for norm, values in scores.items()
        for seed, bleu in enumerate(values, start=1)
    ]
    return folder_of(tmp_path, *runs)
