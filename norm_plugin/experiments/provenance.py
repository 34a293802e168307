"""Where a result comes from: code, versions, machine, and settings, without paths of a machine."""

from __future__ import annotations

import argparse
import ctypes
import enum
import math
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import norm_plugin

SECTIONS = (
    *("common", "model", "task", "criterion", "dataset", "optimization", "optimizer"),
    *("lr_scheduler", "checkpoint", "distributed_training"),
)
"""Of fairseq's configuration: those that determine a run."""
PLACES = {
    *("aim_repo", "continue_once", "data", "distributed_init_method", "distributed_port"),
    *("finetune_from_model", "log_file", "plasma_path", "restore_file", "save_dir"),
    *("tensorboard_logdir", "user_dir"),
}
"""Keys that name places on a machine, wherever they stand; the rest is caught by its value."""
ABSOLUTE_PATH = re.compile(r"""(^|[\s"'=:,;(\[{])(~?/|[A-Za-z]:\\)[^\s]""")
NOT_CODE = (":!results", ":!benchmarks/results", ":!*.md")
"""Files whose changes do not affect a run."""


def plain_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration stored in a checkpoint as plain JSON types, without paths.

    A command line stores all of its flags under ``model``; those that another section holds with
    the same value are left out there.
    """
    sections = {name: _plain(_as_mapping(cfg.get(name))) for name in SECTIONS}
    elsewhere: dict[str, list[Any]] = {}
    for name, section in cfg.items():
        elsewhere.setdefault(name, []).append(_as_mapping(section).get("_name"))
        if name != "model":
            for key, value in _plain(_as_mapping(section)).items():
                elsewhere.setdefault(key, []).append(value)
    model = sections["model"]
    sections["model"] = {
        key: value for key, value in model.items() if value not in elsewhere.get(key, [])
    }
    sections["model"].update({key: model[key] for key in ("_name", "arch") if key in model})
    return sections


def _as_mapping(section: Any) -> Mapping[str, Any]:
    if isinstance(section, argparse.Namespace):
        return vars(section)
    return section if isinstance(section, Mapping) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items() if not _is_place(key, item)}
        return {key: _plain(item) for key, item in sorted(items.items())}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value if not _is_place("", item)]
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if torch.is_tensor(value):
        return value.tolist()
    return type(value).__name__


def _is_place(key: Any, value: Any) -> bool:
    return key in PLACES or (isinstance(value, str) and bool(ABSOLUTE_PATH.search(value)))


def versions() -> dict[str, str | None]:
    """Versions of what computes the result; None for what is not installed."""
    return {
        "python": platform.python_version(),
        "norm_plugin": norm_plugin.__version__,
        "torch": _version("torch"),
        "fairseq": _version("fairseq-fixed") or _version("fairseq"),
        "sacrebleu": _version("sacrebleu"),
        "sacremoses": _version("sacremoses"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any]:
    """``commit`` of the checkout that tracks ``folder`` and whether its code is ``dirty``.

    Both are None outside a checkout, also where a package is installed in somebody else's.
    """
    tracked = _git(folder, "ls-files", ".")
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    root = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return {"commit": None, "dirty": None}
    changes = _git(Path(root), "status", "--porcelain", "--", ".", *NOT_CODE)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def short_commit(git: Mapping[str, Any]) -> str:
    """What :func:`git_state` gave, for a reader: ``0123456789 and changes``."""
    return (git.get("commit") or "unknown")[:10] + (" and changes" if git.get("dirty") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        finished = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return finished.stdout.strip()


def machine(cpu: bool) -> dict[str, Any]:
    """Device, threads and instructions of this process; fairseq uses a GPU unless ``cpu``."""
    on_gpu = torch.cuda.is_available() and not cpu
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        # a preloaded library makes MKL take this CPU for Intel's: docs/troubleshooting.md
        "mkl_as_on_intel": hasattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true"),
    }
