"""Read a folder of results once; ``table.py`` makes tables of it.

A finished run has ``<experiment>/<norm>-seed<N>.json``, see ``result.py``; a run that failed or
diverged has its failure there. ``norm-plugin publish`` stores such a
folder as a few files, see ``publishing.py``:

    runs.csv          one row per run: every value in which the runs differ
    shared.json       the values that all runs share, by the same names
    curves.csv        the losses over training: one row per run, subset and update
    failed.csv        one row per run without a result, if there are any
    statistics.zip    files that are stored with the results, see ``artifacts.py``
    translations.zip

A folder may contain both forms. The file of a run then takes precedence over its row. Reading
imports neither torch nor fairseq.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from norm_lab.config.spec import result_name
from norm_lab.metrics import find_metric
from norm_lab.results.result import SCHEMA, Result
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import parse_json, read_json, read_text

Row = dict[str, Any]
"""The values of a finished run by their dotted names."""
Failure = dict[str, Any]
RunKey = tuple[str, str, int]
RUN_KEY = ["experiment", "norm", "seed"]
"""The columns that name a run."""
PLAIN = [*RUN_KEY, "placement", "metric", "score", "valid_loss", "train_loss", "split_seed"]
"""The first columns of a published table."""
RENAMED_COLUMNS = {"git.commit": "commit", "git.dirty": "dirty"}
WHOLE = ("differs", "sources")
"""Values that remain a dictionary in one column, because their keys contain dots."""
TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("experiment", "norm", "metric", "date", "state"), str),
    **dict.fromkeys(("scores", "curves", "kept", "differs", "settings", "data", "model"), dict),
    "seed": int,
}
"""The types of values that are read by name."""
NUMBERS = re.compile(r"model\.(norm_)?parameters|training\.\w+")
LABELS = re.compile(r"scores\.\w+\.(label|signature)")
"""The dotted names of values that tables show as numbers and as text."""
TEXTS_OF_CURVES = ["experiment", "norm", "subset"]
RUNS, SHARED, CURVES, FAILURES = "runs.csv", "shared.json", "curves.csv", "failed.csv"


def check_result(result: Any, path: Path) -> Result:
    """Return the content of a result's file; CommandError for a wrong schema or name.

    Schema 2 existed for translation only, with the scores under ``bleu``.
    """
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema == 2:
        result |= {"schema": SCHEMA, "metric": "bleu", "scores": result.pop("bleu", None)}
    elif schema != SCHEMA or not {"norm", "seed"} <= result.keys():
        raise CommandError(f"{path} is not a result of schema {SCHEMA}; write it again")
    _check_types(result, path)
    if path.name != result_name(result["norm"], result["seed"]):
        raise CommandError(f"{path} has the result of {result['norm']}, seed {result['seed']}")
    return dict(result)


def _check_types(run: Mapping[str, Any], path: Path) -> None:
    """Raise CommandError if a result or a failure in a file has a value of the wrong type.

    A value that is missing may be needed elsewhere; see :class:`Folder`.
    """
    for name, kind in TYPES.items():
        value = run.get(name)
        if value is not None and not (isinstance(value, kind) and not isinstance(value, bool)):
            raise CommandError(f"{path} has the {name} {str(value)[:60]!r}; write it again")
    for subset, points in (run.get("curves") or {}).items():
        if not isinstance(points, list) or not all(map(_is_point, points)):
            raise CommandError(f"{path} has another value than a curve of {subset}; write it again")
    for kind, entry in (run.get("kept") or {}).items():
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise CommandError(f"{path} has no checksum of its {kind}; write it again")


def _is_point(point: Any) -> bool:
    """Return whether a value is a point of a curve: finite numbers by name."""
    return isinstance(point, dict) and all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in point.values()
    )


def _check_row(row: Row, path: Path) -> None:
    """Raise CommandError if a row lacks a required value, or its score is not a number.

    NaN is a score that could not be computed; comparisons omit it.
    """
    headline = headline_column(row.get("metric", "bleu"))
    missing = [name for name in (*RUN_KEY, "metric") if name not in row]
    if missing:
        raise CommandError(f"{path} lacks {missing[0]}; write it again")
    _check_types({name: value for name, value in row.items() if name in TYPES}, path)
    for name, value in row.items():
        kind = (
            (int, float) if NUMBERS.fullmatch(name) else str if LABELS.fullmatch(name) else object
        )
        if not isinstance(value, kind):
            raise CommandError(f"{path} has the {name} {str(value)[:60]!r}; write it again")
    score = row.get(headline, math.nan)
    if isinstance(score, bool) or not isinstance(score, (int, float)) or math.isinf(score):
        raise CommandError(
            f"{path} has the {headline} {str(score)[:60]!r}, which is not a finite number; "
            "write it again"
        )


@dataclass(frozen=True)
class Folder:
    """The runs in a folder of results. Each file is read once.

    Attributes:
        path: the folder.
        results: the results in JSON files.
        failures: the records of runs without a result in JSON files.
        published: the rows of ``runs.csv``, with the values of ``shared.json``.
        published_failures: the rows of ``failed.csv``.
        published_curves: the table of ``curves.csv``; None if there is none.
        digests: the SHA-256 of each JSON file of ``results`` and ``failures``.
    """

    path: Path
    results: list[Result]
    failures: list[Failure]
    published: list[Row]
    published_failures: list[Failure]
    published_curves: pd.DataFrame | None
    digests: dict[Path, str]

    @cached_property
    def rows(self) -> dict[RunKey, Row]:
        """The finished runs by key, with their values by dotted names."""
        rows = {run_key(row): row for row in self.published}
        for result in self.results:
            path = self.path / result_name(result["norm"], result["seed"])
            try:
                row = {
                    RENAMED_COLUMNS.get(name, name): value for name, value in _flat(result).items()
                }
            except RecursionError as error:
                raise CommandError(f"{path} is nested too deeply; write it again") from error
            headline = headline_column(row.get("metric", "bleu"))
            if headline not in row:
                raise CommandError(f"{path} lacks {headline}; write it again")
            _check_row(row, path)
            rows[run_key(result)] = row
        return {key: rows[key] for key in sorted(rows)}

    @cached_property
    def failed_rows(self) -> dict[RunKey, Failure]:
        """The runs without a result by key."""
        failures = {run_key(run): run for run in (*self.published_failures, *self.failures)}
        return {key: failures[key] for key in sorted(failures) if key not in self.rows}


def read_folder(folder: Path) -> Folder:
    """Read a folder of results, even while runs write to it or it is being published.

    ``publish`` writes its tables before it removes files. Therefore, files are read first.
    """
    digests: dict[Path, str] = {}
    results, failures = [], []
    for path, content in _json_files(folder, digests):
        if isinstance(content, dict) and "state" in content:
            _check_failure(content, path)
            failures.append(content)
        else:
            results.append(check_result(content, path))
    while True:
        version = _version(folder / SHARED)
        shared = {} if version is None else read_json(folder / SHARED)
        if not isinstance(shared, dict):
            raise CommandError(f"{folder / SHARED} is not an object; publish the runs again")
        # without shared.json, runs.csv is not in the published form
        rows = [{**shared, **row} for row in _csv_rows(folder / RUNS)] if shared else []
        for row in rows:
            _check_row(row, folder / RUNS)
        if not shared or _version(folder / SHARED) == version:  # it was not published meanwhile
            break
    curves, failed = folder / CURVES, list(_csv_rows(folder / FAILURES))
    for row in failed:
        _check_failure(row, folder / FAILURES)
    return Folder(
        path=folder,
        results=sorted(results, key=lambda result: (result["norm"], result["seed"])),
        failures=failures,
        published=rows,
        published_failures=failed,
        published_curves=_read_curves(curves) if curves.is_file() else None,
        digests=digests,
    )


def _check_failure(record: Any, path: Path) -> None:
    """Raise CommandError if a value is not the record of a run without a result."""
    if not isinstance(record, dict) or any(
        record.get(name) is None for name in (*RUN_KEY, "state", "differs")
    ):
        raise CommandError(f"{path} is not the record of a failure; remove it")
    _check_types(record, path)


def _read_curves(path: Path) -> pd.DataFrame:
    """Read ``curves.csv``; CommandError if it is not a table with these columns of numbers."""
    numbers = ["seed", "epoch", "updates", "loss"]
    try:
        curves = pd.read_csv(
            path,
            converters=dict.fromkeys(TEXTS_OF_CURVES, cache(_value)),
            keep_default_na=False,  # NA may be the name of an arm
            na_values=[""],
        )
        curves[[*RUN_KEY, "subset"]], curves[numbers].astype(float)
    except (KeyError, TypeError, ValueError) as error:  # ParserError is a ValueError
        raise CommandError(f"{path} is not a table of curves: {error}; publish it again") from error
    return curves


def _version(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when a file is replaced; None if there is no file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


def _json_files(folder: Path, digests: dict[Path, str]) -> Iterator[tuple[Path, Any]]:
    """Yield the JSON files of runs and their contents; add their SHA-256 to ``digests``."""
    for path in sorted(set(folder.glob("*.json")) - {folder / SHARED}):
        try:
            if path.is_fifo():  # reading one would wait for a writer
                raise CommandError(f"{path} is not a file; remove it")
            content = path.read_bytes()
        except FileNotFoundError:  # removed since the folder was listed
            continue
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error
        yield path, parse_json(content, path)
        digests[path] = hashlib.sha256(content).hexdigest()


def run_key(run: Mapping[str, Any]) -> RunKey:
    """Return the key of a run: its experiment, its norm and its seed."""
    return run["experiment"], run["norm"], run["seed"]


def headline_column(metric: str) -> str:
    """Return the column of the headline score of a metric."""
    return f"scores.{find_metric(metric).headline}.score"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted names, without curves and None."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == "curves" or value is None:
            continue
        if isinstance(value, dict) and key not in WHOLE:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file, without empty cells."""
    try:
        for cells in csv_cells(read_text(path) if path.is_file() else ""):
            yield {name: _value(cell) for name, cell in cells.items()}
    except (csv.Error, TypeError) as error:  # more cells in a row than columns
        raise CommandError(f"{path} is not a table: {error}; publish it again") from error


def csv_cells(text: str) -> Iterator[dict[str, str]]:
    """Yield the cells of each row of a CSV file that are not empty, by column."""
    csv.field_size_limit(sys.maxsize)
    for cells in csv.DictReader(io.StringIO(text)):
        yield {name: cell for name, cell in cells.items() if cell}


def _value(cell: str) -> Any:
    """Return the value of a cell that :func:`cell` has made."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def cell(value: Any) -> str:
    """Return a value as JSON; a string without quotes, unless that would be ambiguous."""
    if _is_missing(value):
        return ""
    # Python's writer of CSV leaves a lone carriage return without quotes, and its reader refuses it
    if isinstance(value, str) and value and "\r" not in value and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)
