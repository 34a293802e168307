"""Which backend computes a norm: ``--norm-kernels``, ``NORM_KERNELS``, the device and dtype."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

import torch

from norm_plugin.declarations.flags import AUTO, KERNELS_VARIABLE
from norm_plugin.kernels.cpu import loading as cpu
from norm_plugin.kernels.passes import Ops
from norm_plugin.kernels.triton import loading as triton

logger = logging.getLogger(__name__)

VARIABLE = KERNELS_VARIABLE
OFF, COMPILE = "off", "compile"
BACKENDS: dict[str, Any] = {"cpu": cpu, "triton": triton}
"""The backends by the value of the choice; each module has a ``load()``."""
DEVICES = {"cpu": "cpu", "cuda": "triton"}
"""The backend for each type of device."""
KERNELS = (AUTO, OFF, *BACKENDS, COMPILE)
HALF = (torch.float16, torch.bfloat16)


def resolve(choice: str | None) -> str:
    """Return the effective choice: NORM_KERNELS if set, else ``choice``, else ``auto``.

    The environment overrides, so that a checkpoint stored with another machine's choice loads.

    Raises:
        ValueError: an unknown value, or a backend requested by name that this machine lacks.
    """
    given = os.environ.get(VARIABLE)
    source, word = (VARIABLE, given) if given else ("norm_kernels", choice or AUTO)
    if word not in KERNELS:
        raise ValueError(f"{source} is {word!r}; choose from {', '.join(KERNELS)}")
    if word in BACKENDS:
        ops, description = BACKENDS[word].load()
        if ops is None:
            raise ValueError(
                f"{source} is {word!r}, but its kernels are not available: {description}. "
                f"{VARIABLE}={AUTO} uses those that are available"
            )
    return word


def describe(choice: str) -> str:
    """Return the choice and what it uses, for logs and results: ``auto: cpu (C++, avx2)``."""
    if choice in (OFF, COMPILE):
        return {OFF: "off: plain torch", COMPILE: "compile: torch.compile of plain torch"}[choice]
    names = BACKENDS if choice == AUTO else [choice]
    return f"{choice}: " + ", ".join(f"{name} ({BACKENDS[name].load()[1]})" for name in names)


def has_kernels(choice: str) -> bool:
    """Return whether this machine has kernels for a resolved ``choice``; ``compile`` always has."""
    names = BACKENDS if choice == AUTO else [choice]
    loaded = (BACKENDS[name].load()[0] for name in names if name in BACKENDS)
    return choice == COMPILE or any(ops is not None for ops in loaded)


@functools.cache
def select_backend(
    choice: str, dtype: torch.dtype, device: torch.device, channels: int
) -> tuple[Ops | None, torch.dtype]:
    """Return the backend for inputs (..., C), and the dtype that it needs them in.

    None is plain torch: the reason is logged once per process if it is that kernels are missing.
    """
    backend = DEVICES.get(device.type)
    if backend is None or choice not in (AUTO, backend):
        _warn_once(f"{choice} kernels do not support {device.type} tensors")
        return None, dtype
    ops, description = BACKENDS[backend].load()
    if ops is None:
        _warn_once(f"{backend} kernels {description}")
        return None, dtype
    for needed in (dtype, torch.float32) if dtype in HALF else (dtype,):
        if ops.takes(torch.empty(0, channels, dtype=needed, device=device)):
            return ops, needed
    return None, dtype


@functools.cache
def _warn_once(why: str) -> None:
    """Log a fallback, once per process and reason."""
    logger.warning("norms run in plain torch, which is slower: %s", why)
