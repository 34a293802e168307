"""The rows of measurements in ``benchmarks/results/``, and where they come from."""

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
SAME_LAYER = ("norm", "options", "provider", "rows", "channels", "direction")
"""The columns in which two rows of layers.csv agree where they measure the same thing."""
SAME_TRAINING = ("recipe", "norm", "options", "kernels", "tokens")
"""The columns in which two rows of training.csv agree where they measure the same thing."""
ORIGIN = ("device", "vector", "threads", "torch", "python", "commit", "date")
"""The columns that say where a row comes from, as a table tells them."""
TEXT = (*ORIGIN, "norm", "options")
"""Columns that are text, also where it looks like a number."""
Record = dict[str, Any]
"""A row to write, by the name of the column."""


def commit() -> str:
    """The commit of the checkout, with a + where its code differs from it; empty outside of git."""
    state = git_state(Path(norm_plugin.__file__).parent)
    return f"{(state['commit'] or '')[:7]}{'+' if state['dirty'] else ''}"


def cpu_model() -> str:
    """The name of the processor, or of its architecture where the system has no name for it."""
    facts = CPU_FACTS.read_text(encoding="utf-8") if CPU_FACTS.exists() else ""
    name = re.search(r"^model name\s*: *(.*)", facts, re.MULTILINE)
    return name.group(1) if name else platform.machine()


def provenance(gpu: bool = False) -> Record:
    """The first columns of every row: when, which code, which machine, which versions.

    ``vector`` is the level of vector instructions that torch uses, and the C++ kernels after it; of
    a GPU it is the version of CUDA, or of AMD's ROCm.
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
    text = dict.fromkeys(TEXT, str)
    rows = pd.read_csv(path, dtype=text, keep_default_na=False, na_values="")
    if missing := [name for name in wanted if name not in rows]:
        raise CommandError(f"{path} has no column {', '.join(missing)}; is it a benchmark's?")
    of_each = rows.fillna(dict.fromkeys(TEXT, "")).groupby(list(same), sort=False, as_index=False)
    return of_each[list(columns)].last(skipna=False)
