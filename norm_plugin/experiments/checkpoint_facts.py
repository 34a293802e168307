"""Facts of a run from its checkpoint: length, time, speed, and the size of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import State, num_updates

# fairseq's meters in a checkpoint: (priority, name, class, state) under each group of meters
GROUP = "default"


def training_facts(state: State) -> dict[str, Any]:
    """Length, time and speed of the run, from its last checkpoint; None for what is not there.

    ``seconds`` is wall time over all resumes, validation and saving included. The speeds are those
    of the training steps alone (``train_wall``): forward, backward and optimizer. fairseq's meters
    start anew when a run is resumed at an epoch's end, so the speeds are means over the
    ``measured_updates`` since then; ``tokens`` are those of the target side, as fairseq counts.
    """
    extra = state.get("extra_state") or {}
    iterator = extra.get("train_iterator") or {}
    cfg = state.get("cfg") or {}
    epoch = iterator.get("epoch")
    return {
        "updates": num_updates(state),
        "epochs": None if epoch is None else epoch - 1,  # the stored one is the next to finish
        "seconds": _rounded(_number(extra.get("previous_training_time")), 1),
        **_speeds(extra.get("metrics") or {}),
        "best_valid": {
            "metric": (cfg.get("checkpoint") or {}).get("best_checkpoint_metric"),
            "value": _rounded(_number(extra.get("best")), 4),
        },
    }


def _speeds(metrics: Mapping[str, Any]) -> dict[str, Any]:
    meters = {name: meter for _, name, _, meter in metrics.get(GROUP, [])}
    seconds = _number(meters.get("train_wall", {}).get("sum"))
    updates = _number(meters.get("wpb", {}).get("count"))
    tokens = _number(meters.get("wpb", {}).get("sum"))
    if not seconds or not updates or not tokens:
        return dict.fromkeys(("updates_per_second", "tokens_per_second", "measured_updates"))
    return {
        "updates_per_second": _rounded(updates / seconds, 3),
        "tokens_per_second": _rounded(tokens / seconds, 1),
        "measured_updates": int(updates),
    }


def _number(value: Any) -> float | None:
    """Runs with several workers store some numbers as tensors."""
    return None if value is None else float(value)


def _rounded(value: float | None, digits: int) -> float | None:
    """None also for a diverged run's NaN, which JSON has no word for."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def model_facts(checkpoint: Path, binarized: Path) -> dict[str, Any]:
    """Size and norms of the model in a checkpoint, which fairseq builds anew.

    Returns ``parameters``, the trainable ones with tied ones counted once, ``norm_parameters``,
    those of the norms among them, and ``sites``, the norm of every site that the model has
    (None for a model that is not ours). ``binarized`` holds the dictionaries. Raises
    CommandError where model and data do not fit together.
    """
    from norm_plugin.models.plan import make_plan
    from norm_plugin.models.sites import sides_of

    model, cfg, _ = build_model(checkpoint, binarized)
    plan = make_plan(cfg.model, sides_of(model))
    norms = {
        parameter
        for choice in plan.sites
        for path, module in model.named_modules()
        if choice.site.is_at(path)
        for parameter in module.parameters()
    }
    ours = getattr(cfg.model, "norm_type", None) is not None
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "norm_parameters": sum(p.numel() for p in norms if p.requires_grad),
        "sites": {choice.site.name: choice.norm for choice in plan.sites} if ours else None,
    }
