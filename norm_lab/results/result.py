"""The result of a finished run; ``norm-plugin finish`` writes it.

``<experiment>/<norm>-seed<N>.json`` has the scores, settings, commit, versions, data, size and
speed of a run; unknown values are null.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from norm_lab.config.spec import RunSpec, result_name
from norm_lab.engine.state import read_status, utc_date
from norm_lab.engine.training_log import curves_of_log
from norm_lab.metrics import find_metric
from norm_lab.results.provenance import git_state, machine, plain, plain_settings, versions
from norm_lab.results.statistics import statistics_of_run
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json, write_text
from norm_plugin.io.user_dirs import import_user_dir

SCHEMA = 4
SPLIT = "test"
Result = dict[str, Any]


def write_result(result: Result, out: Path) -> Path:
    """Write a result under ``out``, atomically, and return its path."""
    path = out / result["experiment"] / result_name(result["norm"], result["seed"])
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, f"{text}\n")
    return path


def collect_result(spec: RunSpec, evaluation: Any) -> Result:
    """Return the result of a finished run, from its files; CommandError if they disagree.

    Args:
        evaluation: what its metric has returned.
    """
    from norm_plugin.checkpoints.files import LAST, load_checkpoint  # imports torch
    from norm_plugin.models.plan import RECORDS

    import_user_dir(spec.user_dir)
    evaluated = load_checkpoint(spec.evaluated)
    manifest = read_json(spec.data / "manifest.json")
    path = spec.checkpoints / LAST
    last = load_checkpoint(path)
    cfg = last.get("cfg") or {}
    common = cfg.get("common") or {}
    if common.get("seed") not in (None, spec.seed):
        raise CommandError(
            f"the seed of the run is {spec.seed}, but {path} was trained with seed {common['seed']}"
        )
    train = read_status(spec.folder).stages.get("train")
    model = describe_model(spec.evaluated, spec.data / "bin", evaluated)
    log = spec.log_of("train")
    metric = find_metric(spec.metric)
    outputs = metric.item_outputs(evaluation, spec.data)
    return {
        "schema": SCHEMA,
        "run": plain(spec.identity()),
        "experiment": spec.experiment,
        "norm": spec.evaluated_label,
        "differs": spec.arm.changes,
        "sources": spec.sources,
        "seed": spec.seed,
        "sites": model.pop("sites"),
        "metric": spec.metric,
        "scores": metric.scores(evaluation, spec.data, SPLIT),
        "split": SPLIT,
        "model": model,
        "training": {
            **describe_training(last),
            "peak_memory": None if train is None else train.memory or None,
        },
        "curves": curves_of_log(log) if log.exists() else None,
        "averaged_from": evaluated.get("averaged_from"),
        "running_stats": evaluated.get("running_stats"),
        "settings": plain_settings(cfg),
        "data": {
            "corpus": manifest.get("corpus"),
            "settings": manifest.get("settings"),
            "checksum": manifest.get("checksum"),
            "training_pairs": training_pairs(manifest),
        },
        "git": git_state(Path(__file__).parent),
        "versions": versions(),
        "machine": machine(cpu=bool(common.get("cpu"))),
        "date": utc_date(time.time()),
        "translations": None if outputs is None else list(outputs),
        "windows": metric.window_losses(evaluation),
        "statistics": statistics_of_run(spec.checkpoints / RECORDS, evaluated),
    }


def describe_training(state: dict[str, Any]) -> dict[str, Any]:
    """Return the length, time and speed of a training, from its last checkpoint; None if unknown.

    ``seconds`` is the wall time over all resumes, including validation and saving. The speeds are
    those of the training steps only (``train_wall``): forward, backward and optimizer. fairseq
    resets its meters when a run is resumed at the end of an epoch, so the speeds are means over the
    ``measured_updates`` since then. ``tokens`` are target tokens, as fairseq counts them.
    """
    from norm_plugin.checkpoints.files import num_updates

    extra = state.get("extra_state") or {}
    epoch = (extra.get("train_iterator") or {}).get("epoch")
    checkpoint = (state.get("cfg") or {}).get("checkpoint") or {}
    # a meter is stored as (priority, name, class, state), under its group
    default = (extra.get("metrics") or {}).get("default", [])
    meters = {name: meter for _, name, _, meter in default}
    wall, batch = meters.get("train_wall", {}), meters.get("wpb", {})
    sums = (wall.get("sum"), batch.get("count"), batch.get("sum"))
    seconds, updates, tokens = (float(value or 0) for value in sums)
    measured = bool(seconds and updates and tokens)
    return {
        "updates": num_updates(state),
        "epochs": None if epoch is None else epoch - 1,  # fairseq stores the next epoch to finish
        "seconds": _rounded(extra.get("previous_training_time"), 1),
        "updates_per_second": _rounded(updates / seconds, 3) if measured else None,
        "tokens_per_second": _rounded(tokens / seconds, 1) if measured else None,
        "measured_updates": int(updates) if measured else None,
        "best_valid": {
            "metric": checkpoint.get("best_checkpoint_metric"),
            "value": _rounded(extra.get("best"), 4),
        },
    }


def _rounded(value: Any, digits: int) -> float | None:
    """Return a rounded number; accepts a tensor; None if not finite, as JSON has no NaN."""
    finite = value is not None and math.isfinite(value)
    return round(float(value), digits) if finite else None


def describe_model(
    checkpoint: Path, binarized: Path, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the size and the norms of the model in a checkpoint.

    Args:
        binarized: the folder of the binarized data, for the dictionaries.
        state: the content of the checkpoint if it was read before.

    Returns:
        ``parameters``, the number of trainable parameters, with tied ones counted once;
        ``norm_parameters``, the number of those in norms; and ``sites``, the norm of every site
        (None for a model of fairseq's own).

    Raises:
        CommandError: model and data do not fit together.
    """
    from norm_plugin.checkpoints.building import build_model  # imports fairseq
    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.settle import settle
    from norm_plugin.models.sites import sides_of

    model, cfg, _ = build_model(checkpoint, binarized, state)
    planned = isinstance(model, NormModel)
    plan = model.cfg.plan if planned else settle(cfg.model, sides_of(model))
    norms = {
        parameter
        for choice in plan.sites
        for path, module in model.named_modules()
        if choice.site.is_at(path)
        for parameter in module.parameters()
    }
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "norm_parameters": sum(p.numel() for p in norms if p.requires_grad),
        "sites": {choice.site.name: choice.norm for choice in plan.sites} if planned else None,
    }


def training_pairs(manifest: Mapping[str, Any]) -> int | None:
    """Return the number of training examples of a corpus; None for running text or if unknown."""
    if (manifest.get("settings") or {}).get("unit"):
        return None
    counts = manifest.get("counts") or {}
    text = counts.get("bpe") or counts.get("tok") or {}
    pairs: int | None = (text.get(f"train.{manifest.get('source')}") or {}).get("lines")
    return pairs
