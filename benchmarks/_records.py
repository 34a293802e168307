"""Rows of measurements, with where they come from, in the CSV files of ``benchmarks/results/``."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

import norm_plugin
from norm_plugin.commands.command_line import CommandError, read_text, write_text
from norm_plugin.experiments.provenance import git_state, versions

RESULTS = Path(__file__).resolve().parent / "results"
CPU_FACTS = Path("/proc/cpuinfo")
Record = dict[str, Any]
"""A row, by the name of the column."""


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


def provenance() -> Record:
    """The first columns of every row: when, which code, which machine, which versions.

    ``vector`` is the level of vector instructions that torch uses, and the C++ kernels after it.
    """
    found = versions()
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "device": cpu_model(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **{name: found[name] for name in ("python", "torch", "norm_plugin")},
    }


def append(path: Path, rows: Sequence[Record]) -> None:
    """Append rows of the same columns to a CSV file, whole or not at all.

    A file that is not there begins with their names. Raises CommandError where it has other
    columns.
    """
    columns = list(rows[0])
    old = read_text(path) if path.exists() else ",".join(columns) + "\n"
    header = old.split("\n")[0].split(",")
    if header != columns:
        raise CommandError(
            f"{path} has the columns {', '.join(header)}, the new rows {', '.join(columns)}; "
            "give another --output, or move the file away"
        )
    new = io.StringIO()
    csv.DictWriter(new, columns, lineterminator="\n").writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, old + new.getvalue())
