"""The CSV files of ``benchmarks/results/``: rows of measurements, with where they come from.

A file has one row a measurement, and later rows replace earlier ones of the same thing.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import norm_plugin
from norm_plugin.commands.command_line import CommandError, read_text, write_text
from norm_plugin.experiments.collect import git_state, versions

RESULTS = Path(__file__).resolve().parents[1] / "results"
CPU_FACTS = Path("/proc/cpuinfo")
SAME_LAYER = ("norm", "options", "provider", "rows", "channels", "direction")
"""The columns in which two rows of layers.csv agree where they measure the same thing."""
SAME_TRAINING = ("recipe", "norm", "options", "kernels", "tokens")
"""The same of training.csv."""
ORIGIN = ("device", "vector", "threads", "torch", "python", "commit", "date")
"""The columns that say where a row comes from, as a table tells them."""
NUMBERS = ("rows", "channels", "copy_share", "ratio", "peak_mib", "updates_per_s")
"""Columns of numbers, beside those whose names hold ``_p`` and ``ratio``; the others are text."""
Record = dict[str, Any]
"""A row to write, by the name of the column."""


def commit() -> str:
    """The commit of the checkout, with a + where its code differs from it; empty outside of git."""
    state = git_state(Path(norm_plugin.__file__).parent)
    return f"{(state['commit'] or '')[:7]}{'+' if state['dirty'] else ''}"


def cpu_model() -> str:
    """The name of the processor, or of its architecture where the system has no name for it."""
    if CPU_FACTS.exists():
        for line in CPU_FACTS.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()


def cuda_version() -> str:
    """What torch was built for: ``CUDA 12.8``, or that of AMD's ROCm."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}"


def provenance(gpu: bool = False) -> Record:
    """The first columns of every row: when, which code, which machine, which versions.

    ``vector`` is the level of vector instructions that torch uses, and the C++ kernels after it; of
    a GPU it is the version of CUDA.
    """
    installed = versions()
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "device": torch.cuda.get_device_name() if gpu else cpu_model(),
        "vector": cuda_version() if gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **{name: installed[name] for name in ("python", "torch", "norm_plugin")},
    }


def append(path: Path, rows: Sequence[Record]) -> None:
    """Append rows of the same columns to a CSV file, whole or not at all.

    A file that is not there begins with their names. Raises CommandError where it has other
    columns.
    """
    table = pd.DataFrame(rows, dtype=object)
    old = read_text(path) if path.exists() else ""
    header = old.partition("\n")[0]
    if old and header != ",".join(table.columns):
        raise CommandError(
            f"{path} has the columns {header}, the new rows {','.join(table.columns)}; give "
            "another --output, or move the file away"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, old + table.to_csv(index=False, header=not old, lineterminator="\n"))


def read_rows(path: Path, same: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """The newest row of each measurement in a file; none where there is no file.

    Args:
        same: the columns in which rows agree that measure the same thing.
        columns: what else is read.

    Raises:
        CommandError: the file lacks one of the columns.
    """
    wanted = [*same, *columns]
    if not path.exists():
        return pd.DataFrame(columns=wanted)
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    if missing := [name for name in wanted if name not in rows]:
        raise CommandError(f"{path} has no column {', '.join(missing)}; is it a benchmark's?")
    newest = rows.drop_duplicates(same, keep="last").set_index(list(same), drop=False)
    rows = newest.loc[rows.set_index(list(same)).index.unique(), wanted].reset_index(drop=True)
    numeric = [name for name in rows if name in NUMBERS or "_p" in name or "ratio" in name]
    rows[numeric] = rows[numeric].apply(pd.to_numeric)
    return rows
