"""The origin of a result: settings, code, versions and machine."""

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

import norm_plugin

SECTIONS = (
    *("common", "model", "task", "criterion", "dataset", "optimization", "optimizer"),
    *("lr_scheduler", "checkpoint", "distributed_training"),
)
"""The sections of fairseq's configuration that determine a run."""
PATH_KEYS = {
    *("aim_repo", "continue_once", "data", "distributed_init_method", "distributed_port"),
    *("finetune_from_model", "log_file", "plasma_path", "restore_file", "save_dir"),
    *("tensorboard_logdir", "user_dir"),
}
"""Keys of settings that are paths or addresses; others are recognized by their value."""
ABSOLUTE_PATH = re.compile(r"""(^|[\s"'=:,;(\[{])(~?/|[A-Za-z]:\\)[^\s]""")
NOT_CODE = (
    *(":!papers", ":!benchmarks/results", ":!docs", ":!*.md", ":!*tuned.json"),
    *(f":!studies/*{end}" for end in (".json", ".jsonl", ".jsonl.gz", ".csv", ".svg")),
)
"""Files whose changes do not affect a run; tuned values are also among its settings."""


def plain_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in a checkpoint in types that JSON has, without paths.

    fairseq stores all flags of a command line under ``model``. Those that another section has with
    the same value are omitted from it.
    """
    content = plain(cfg).items()
    sections = {name: values if isinstance(values, dict) else {} for name, values in content}
    elsewhere: dict[str, list[Any]] = {}
    for name, section in sections.items():
        elsewhere.setdefault(name, []).append(section.get("_name"))
        if name != "model":
            for key, value in section.items():
                elsewhere.setdefault(key, []).append(value)
    model = {
        key: value
        for key, value in sections.get("model", {}).items()
        if key in ("_name", "arch") or value not in elsewhere.get(key, [])
    }
    return {name: sections.get(name, {}) for name in SECTIONS} | {"model": model}


def plain(value: Any) -> Any:
    """Return a value in types that JSON has, without paths."""
    import torch

    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items() if not _is_path(key, item)}
        return {key: plain(item) for key, item in sorted(items.items())}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value if not _is_path("", item)]
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if torch.is_tensor(value):
        return value.tolist()
    return type(value).__name__


def _is_path(key: Any, value: Any) -> bool:
    return key in PATH_KEYS or (isinstance(value, str) and bool(ABSOLUTE_PATH.search(value)))


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages; None if not installed."""
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
    """Return the ``commit`` of the checkout of ``folder``, and whether its code is ``dirty``.

    Both are None if no checkout tracks the folder, as for an installed package.
    """
    tracked = _git(folder, "ls-files", ".")
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    root = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return {"commit": None, "dirty": None}
    changes = _git(Path(root), "status", "--porcelain", "--", ".", *NOT_CODE)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def short_commit(git: Mapping[str, Any]) -> str:
    """Return the result of :func:`git_state` as text: ``0123456789 and changes``."""
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
    """Return the device, threads and CPU instructions of this process.

    Args:
        cpu: whether ``--cpu`` was given; otherwise fairseq uses a GPU if there is one.
    """
    import torch

    on_gpu = torch.cuda.is_available() and not cpu
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        # whether a preloaded library makes MKL treat the CPU as Intel's: docs/troubleshooting.md
        "mkl_as_on_intel": hasattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true"),
    }
