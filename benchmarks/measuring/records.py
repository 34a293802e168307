"""The rows of measurements in ``benchmarks/results/``, and their origin."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import norm_plugin
from norm_lab.results.provenance import git_state, versions
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_text, write_text

RESULTS = Path(__file__).resolve().parents[1] / "results"
CPU_FACTS = Path("/proc/cpuinfo")
SAME_LAYER = ("norm", "options", "provider", "rows", "channels")
"""The columns that are equal in two rows of layers.csv that measure the same thing."""
SAME_ON_GPU = {
    "layers": ("norm", "options", "provider", "dtype", "rows", "channels"),
    "updates": ("norm", "options", "optimizer", "stock_optimizer"),
}
"""The columns that are equal in two such rows of gpu_layers.csv and gpu_updates.csv."""
SAME_ON_HOST = ("norm", "options", "optimizer")
"""The columns that are equal in two rows of host.csv that measure the same thing."""
SAME_TRAINING = ("recipe", "norm", "options", "kernels", "tokens")
"""The columns that are equal in two rows of training.csv that measure the same thing."""
ORIGIN = ("device", "vector", "threads", "torch", "python", "commit", "date")
"""The columns that describe the origin of a row, as shown in tables."""
TEXT = (*ORIGIN, "norm", "options")
"""Columns that are text, even if it looks like a number."""
Record = dict[str, Any]
"""A row to write, by column name."""


def commit() -> str:
    """Return the commit of the checkout, with a + if its code differs; empty outside git."""
    state = git_state(Path(norm_plugin.__file__).parent)
    return f"{(state['commit'] or '')[:7]}{'+' if state['dirty'] else ''}"


def cpu_model() -> str:
    """Return the name of the processor, or its architecture if the system has no name for it."""
    facts = CPU_FACTS.read_text(encoding="utf-8") if CPU_FACTS.exists() else ""
    name = re.search(r"^model name\s*: *(.*)", facts, re.MULTILINE)
    return name.group(1) if name else platform.machine()


def provenance(gpu: bool = False) -> Record:
    """Return the first columns of every row: date, code, machine and versions.

    ``vector`` is the level of vector instructions that torch uses, and thus the C++ kernels; for a
    GPU it is the version of CUDA, or of AMD's ROCm.
    """
    installed, rocm = versions(), torch.version.hip
    built_for = f"ROCm {rocm}" if rocm else f"CUDA {torch.version.cuda}"
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "device": torch.cuda.get_device_name() if gpu else cpu_model(),
        "vector": built_for if gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **{name: installed[name] for name in ("python", "torch", "norm_plugin")},
    }


def append(path: Path, rows: Sequence[Record]) -> None:
    """Append rows with equal columns to a CSV file, atomically.

    A new file begins with their names.

    Raises:
        CommandError: the file has other columns.
    """
    table = pd.DataFrame(rows, dtype=object)
    old = read_text(path) if path.exists() else ""
    header = old.partition("\n")[0]
    if old and header != ",".join(table.columns):
        raise CommandError(
            f"{path} has the columns {header}, but the new rows {','.join(table.columns)}; give "
            "another --output, or move the file away"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, old + table.to_csv(index=False, header=not old, lineterminator="\n"))


def read_rows(path: Path, same: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return the newest row of each measurement in a file; none if there is no file.

    Args:
        same: the columns that are equal in rows that measure the same thing.
        columns: the other columns to read.

    Raises:
        CommandError: the file lacks one of the columns.
    """
    wanted = [*same, *columns]
    if not path.exists():
        return pd.DataFrame(columns=wanted)
    text = dict.fromkeys(TEXT, str)
    rows = pd.read_csv(path, dtype=text, keep_default_na=False, na_values="")
    if missing := [name for name in wanted if name not in rows]:
        raise CommandError(f"{path} has no column {', '.join(missing)}; give a benchmark's file")
    of_each = rows.fillna(dict.fromkeys(TEXT, "")).groupby(list(same), sort=False, as_index=False)
    return of_each[list(columns)].last(skipna=False)
