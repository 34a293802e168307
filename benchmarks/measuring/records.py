"""The CSV files of ``benchmarks/results/``: rows of measurements, with where they come from.

A file has one row a measurement, and later rows replace earlier ones of the same thing.
"""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

import norm_plugin
from norm_plugin.commands.command_line import CommandError, read_lines, read_text, write_text
from norm_plugin.experiments.provenance import git_state, versions

RESULTS = Path(__file__).resolve().parents[1] / "results"
CPU_FACTS = Path("/proc/cpuinfo")
SAME_LAYER = ("norm", "options", "provider", "rows", "channels", "direction")
"""The columns in which two rows of layers.csv agree where they measure the same thing."""
SAME_TRAINING = ("norm", "options", "kernels", "tokens")
"""The same of training.csv."""
ORIGIN = ("device", "vector", "threads", "torch", "python", "commit", "date")
"""The columns that say where a row comes from, as a table tells them."""
Record = dict[str, Any]
"""A row to write, by the name of the column."""
Row = dict[str, str]
"""A row as it is read."""
Key = tuple[str, ...]


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
    found = versions()
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "device": torch.cuda.get_device_name() if gpu else cpu_model(),
        "vector": cuda_version() if gpu else torch.backends.cpu.get_cpu_capability(),
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


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a file of measurements, oldest first; none where there is no file.

    Raises CommandError where it lacks one of ``columns``.
    """
    if not path.exists():
        return []
    reader = csv.DictReader(read_lines(path))
    missing = [name for name in columns if name not in (reader.fieldnames or [])]
    if missing:
        raise CommandError(f"{path} has no column {', '.join(missing)}; is it a benchmark's?")
    return list(reader)


def newest(rows: Iterable[Row], columns: Sequence[str]) -> dict[Key, Row]:
    """The last row for each combination of values in ``columns``."""
    return {tuple(row[name] for name in columns): row for row in rows}
