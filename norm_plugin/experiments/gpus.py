"""Run one recipe on any number of GPUs with the same batch an update.

A recipe's batch is ``max_tokens``, or ``batch_size`` in sentences, times ``update_freq`` on one
worker. With N workers, ``update_freq`` is divided by N; where the division leaves a rest, the
recipe is refused unless the user lets the batch change.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Recipe = dict[str, dict[str, Any]]

AUTO = "auto"
ON_CPU = {"distributed_backend": "gloo", "ddp_backend": "legacy_ddp"}
"""How several workers on CPUs exchange gradients."""
HALF = ("--fp16", "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16")


def for_workers(
    recipe: Recipe,
    gpus: str,
    further: Sequence[str] = (),
    *,
    elsewhere: bool = False,
    change_batch: bool = False,
    srun: bool = False,
) -> Recipe:
    """A copy of ``recipe`` for a number of GPUs, or for the CPU.

    Args:
        gpus: a number, or "auto" for one GPU, or the CPU where there is none.
        further: the user's own flags of ``fairseq-train``, which win over the recipe.
        elsewhere: the run is for another machine, so the GPUs of this one do not matter.
        change_batch: let the batch grow with the GPUs.
        srun: each worker is a process of a Slurm job. Only so can there be several on CPUs.

    Raises:
        ValueError: fewer GPUs than asked for, a recipe or a precision that does not fit, or a
            batch that cannot be divided.
    """
    present = torch.cuda.device_count()
    recipe = copy.deepcopy(recipe)
    common = recipe.setdefault("common", {})
    for_cpu = bool(common.get("cpu")) or "--cpu" in further
    if gpus == AUTO and (for_cpu or present == 0):
        if not elsewhere:
            _check_precision(common, further)
        common["cpu"] = True
        return recipe
    count = 1 if gpus == AUTO else _count(gpus)
    if for_cpu and not srun:
        raise ValueError(f"--gpus {gpus}, but the recipe is one for the CPU; leave --gpus out")
    if for_cpu:
        _check_precision(common, further)
        common["cpu"] = True
        recipe.setdefault("distributed_training", {}).update(ON_CPU)
    elif count > present and not elsewhere:
        raise ValueError(f"--gpus {count}, but this machine has {present}; ask for at most as many")
    recipe.setdefault("distributed_training", {})["distributed_world_size"] = count
    if count > 1 and not change_batch:
        _keep_batch(recipe, count, further)
    return recipe


def _check_precision(common: Mapping[str, Any], further: Sequence[str]) -> None:
    half = [flag for flag in HALF if flag in further]
    keys = [key for key in ("fp16", "bf16") if common.get(key)]
    if keys:
        raise ValueError(
            f"the recipe has common.{keys[0]}, which needs a GPU, and this run is on the CPU; give "
            f"common.{keys[0]}=false"
        )
    if half:
        raise ValueError(f"{half[0]} needs a GPU, and this run is on the CPU; leave it out")


def _count(gpus: str) -> int:
    if not gpus.isdigit() or int(gpus) < 1:
        raise ValueError(f"--gpus is {gpus!r}; it must be a number from 1, or {AUTO}")
    return int(gpus)


def _keep_batch(recipe: Recipe, count: int, further: Sequence[str]) -> None:
    """Divide ``update_freq`` by the number of workers, unless the user's own flags set it."""
    unit, flag, size = _batch_of(recipe)
    (freq,) = recipe["optimization"].get("update_freq", [1])
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag, type=int, default=size, dest="size")
    parser.add_argument("--update-freq")
    own, _ = parser.parse_known_args(list(further))
    if own.update_freq is not None:
        return
    parts, rest = divmod(size * freq, own.size * count)
    if rest or not parts:
        share, uneven = divmod(size * freq, count)
        hint = "" if uneven or share > size else f" (-- {flag} {share})"
        raise ValueError(
            f"{count} GPUs of {own.size} {unit} cannot share the recipe's batch of {size} x {freq} "
            f"{unit}: take another number of GPUs, other {unit} a GPU{hint}, or --change-batch"
        )
    recipe["optimization"]["update_freq"] = [parts]


def _batch_of(recipe: Recipe) -> tuple[str, str, int]:
    """What a batch is counted in, the flag of its size, and the size on one worker."""
    dataset = recipe["dataset"]
    if dataset.get("max_tokens") is not None:
        return "tokens", "--max-tokens", dataset["max_tokens"]
    return "sentences", "--batch-size", dataset["batch_size"]
