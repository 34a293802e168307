"""Read a folder of results once; ``table.py`` makes tables of it.

A run has ``<experiment>/<norm>-seed<N>.json``, see ``result.py``: its result, or why it failed or
diverged. ``norm-plugin publish`` stores such a folder as two files, see ``publishing.py``:

    runs.jsonl          the values that all finished runs share; then a line per run: the others
    outputs.jsonl.gz    a line per run: its curves, statistics, translations and windows

A folder may contain both forms. Of a run that is in both, the newer one counts. Reading imports
neither torch nor fairseq.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.config.spec import result_name
from norm_lab.config.studies import TUNED_FILE
from norm_lab.metrics import find_metric
from norm_lab.results.result import SCHEMA
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import parse_json, read_lines, reading

Row = dict[str, Any]
"""The values of a run by their dotted names, and those in OUTPUTS."""
RunKey = tuple[str, str, int]
RUN_KEY = ["experiment", "norm", "seed"]
"""The columns that name a run."""
ARM = ("run.arm.norm", "run.arm.placement")
RUNS, PUBLISHED_OUTPUTS = "runs.jsonl", "outputs.jsonl.gz"
OUTPUTS = ("curves", "statistics", "translations", "windows")
"""Values that are no cells of a table: nested, and of any size."""
WHOLE = ("differs", "changes", "sources", *OUTPUTS)
"""Values that remain a dictionary in one column, because their keys contain dots."""


@dataclass(frozen=True)
class Folder:
    """The runs in a folder of results.

    Attributes:
        path: the folder.
        runs: every run by its key, sorted; one without a result has a ``state``.
        digests: the SHA-256 of each file of a run.
    """

    path: Path
    runs: dict[RunKey, Row]
    digests: dict[Path, str]

    @property
    def finished(self) -> list[Row]:
        """The runs with a result."""
        return [row for row in self.runs.values() if "state" not in row]

    @property
    def failed(self) -> list[Row]:
        """The runs without a result."""
        return [row for row in self.runs.values() if "state" in row]


def read_folder(folder: Path) -> Folder:
    """Read a folder of results, even while runs write to it or it is being published.

    ``publish`` writes its tables before it removes files. Therefore, files are read first.

    Raises:
        CommandError: a file is no JSON, has an unknown schema, or lacks a value.
    """
    digests, of_files = {}, []
    for path in sorted(folder.glob("*.json")):
        if path.name == TUNED_FILE:
            continue
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # it was published since the folder was listed
            continue
        digests[path] = hashlib.sha256(content).hexdigest()
        of_files.append(_row_of_file(path, content))
    runs: dict[RunKey, Row] = {}
    for row in (*_published(folder), *of_files):
        add_run(runs, row)
    return Folder(folder, {key: runs[key] for key in sorted(runs)}, digests)


def check_has_results(folder: Folder) -> None:
    """Raise CommandError if a folder has no finished run."""
    if not folder.finished:
        why = "it has none" if folder.path.is_dir() else "the folder does not exist"
        raise CommandError(
            f"no results in {folder.path}: {why}. A finished run writes <norm>-seed<N>.json there, "
            "or below the --results or --work folder that it was given"
        )


def add_run(runs: dict[RunKey, Row], row: Row) -> None:
    """Add a run, in place of one with the same key if that has no result or is not newer."""
    known = runs.get(run_key(row))
    if known is None or _version_of_run(row) >= _version_of_run(known):
        runs[run_key(row)] = row


def _version_of_run(row: Row) -> tuple[bool, str]:
    return "state" not in row, row.get("date") or ""


def run_key(run: Mapping[str, Any]) -> RunKey:
    """Return the key of a run: its experiment, its norm and its seed."""
    return run["experiment"], run["norm"], run["seed"]


def headline_column(metric: str) -> str:
    """Return the column of the headline score of a metric."""
    return f"scores.{find_metric(metric).headline}.score"


def _row_of_file(path: Path, content: bytes) -> Row:
    """Return the content of the file of a run as a row; CommandError if it is none."""
    run = parse_json(content, path)
    if not isinstance(run, dict) or ("state" not in run and run.get("schema") != SCHEMA):
        raise CommandError(
            f"{path} is not a result of schema {SCHEMA}; run it again, or publish the folder with "
            "the commit that wrote it"
        )
    row = _flat(run)
    needed = [] if "state" in row else [headline_column(row.get("metric", "bleu"))]
    _check_has(row, needed, path)
    if path.name != result_name(row["norm"], row["seed"]):
        raise CommandError(f"{path} has the result of {row['norm']}, seed {row['seed']}")
    return row


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted names, without None."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and key not in WHOLE:
            flat.update(_flat(value, f"{prefix}{key}."))
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


def _published(folder: Path) -> list[Row]:
    """Return the published runs of a folder."""
    if not (folder / RUNS).is_file():
        return []
    shared, *own = (parse_json(line, folder / RUNS) for line in read_lines(folder / RUNS))
    rows = [row if "state" in row else {**shared, **row} for row in own]
    for row in rows:
        _check_has(row, [], folder / RUNS)
    with reading(folder / PUBLISHED_OUTPUTS) as stream:
        text = gzip.decompress(stream.read()).decode("utf-8")
    outputs = {}
    for line in filter(None, text.split("\n")):
        of_run = parse_json(line, folder / PUBLISHED_OUTPUTS)
        outputs[tuple(of_run.pop(name) for name in RUN_KEY)] = of_run
    return [row | outputs.get(run_key(row), {}) for row in rows]


def _check_has(row: Row, more: Iterable[str], path: Path) -> None:
    """Raise CommandError if the row of a run lacks a value that every run has, or one of more."""
    needed = (*RUN_KEY, *ARM, "differs" if "state" in row else "metric", *more)
    missing = [name for name in needed if name not in row]
    if missing:
        raise CommandError(f"{path} lacks {missing[0]}; run it again")
