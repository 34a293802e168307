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
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.config.spec import result_name
from norm_lab.metrics import find_metric
from norm_lab.results.result import SCHEMA
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import parse_json, read_lines

Row = dict[str, Any]
"""The values of a run by their dotted names, and those in OUTPUTS."""
RunKey = tuple[str, str, int]
RUN_KEY = ["experiment", "norm", "seed"]
"""The columns that name a run."""
ARM = ("run.arm.norm", "run.arm.placement")
RUNS, PUBLISHED_OUTPUTS = "runs.jsonl", "outputs.jsonl.gz"
OUTPUTS = ("curves", "statistics", "translations", "windows")
"""Values that are no cells of a table: nested, and of any size."""
RENAMED = {"git.commit": "commit", "git.dirty": "dirty"}
WHOLE = ("differs", "changes", "sources", *OUTPUTS)
"""Values that remain a dictionary in one column, because their keys contain dots."""
TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("experiment", "norm", "metric", "date", "state"), str),
    **dict.fromkeys(("scores", "curves", "differs", "settings", "data", "model"), dict),
    **{"seed": int, "statistics": dict, "translations": list, "windows": list},
}
"""The types of values that are read by name."""
NUMBERS = re.compile(r"model\.(norm_)?parameters|training\.\w+")
LABELS = re.compile(r"scores\.\w+\.(label|signature)")
"""The dotted names of values that tables show as numbers and as text."""


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
        CommandError: a file is damaged, or has an unknown schema or a wrong value.
    """
    digests: dict[Path, str] = {}
    of_files = [_row_of_file(path, content) for path, content in _json_files(folder, digests)]
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


def _json_files(folder: Path, digests: dict[Path, str]) -> Iterator[tuple[Path, Any]]:
    """Yield the JSON files of runs and their contents; add their SHA-256 to ``digests``."""
    for path in sorted(folder.glob("*.json")):
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


def _row_of_file(path: Path, run: Any) -> Row:
    """Return the content of the file of a run as a row; CommandError if it is none."""
    if not isinstance(run, dict) or not {"norm", "seed"} <= run.keys():
        raise CommandError(f"{path} is not a result of schema {SCHEMA}; write it again")
    if "state" not in run and run.get("schema") != SCHEMA:
        raise CommandError(
            f"{path} is not a result of schema {SCHEMA}; write it again, or publish the folder "
            "with the commit that wrote it"
        )
    _check_types(run, path)
    if path.name != result_name(run["norm"], run["seed"]):
        raise CommandError(f"{path} has the result of {run['norm']}, seed {run['seed']}")
    try:
        row = {RENAMED.get(name, name): value for name, value in _flat(run).items()}
    except RecursionError as error:
        raise CommandError(f"{path} is nested too deeply; write it again") from error
    if "state" not in row and headline_column(row.get("metric", "bleu")) not in row:
        raise CommandError(f"{path} lacks {headline_column(row['metric'])}; write it again")
    return _checked(row, path)


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
    while True:
        version = _version(folder / RUNS)
        if version is None:
            return []
        rows = _lines(folder / RUNS, "\n".join(read_lines(folder / RUNS)))
        outputs = {}
        if (folder / PUBLISHED_OUTPUTS).is_file():
            for line in _lines(folder / PUBLISHED_OUTPUTS, _unpacked(folder / PUBLISHED_OUTPUTS)):
                outputs[tuple(line.pop(name, None) for name in RUN_KEY)] = line
        if _version(folder / RUNS) == version:  # it was not published meanwhile
            break
    shared, *own = rows or [{}]
    runs = [row if "state" in row else {**shared, **row} for row in own]
    checked = [_checked(row, folder / RUNS) for row in runs]
    return [_checked(row | outputs.get(run_key(row), {}), folder / RUNS) for row in checked]


def _unpacked(path: Path) -> str:
    try:
        return gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CommandError(f"cannot read {path}: {error}") from error


def _lines(path: Path, text: str) -> list[Row]:
    """Return the objects of a file of JSON lines."""
    rows = [parse_json(line, path) for line in text.split("\n") if line]
    if not all(isinstance(row, dict) for row in rows):
        raise CommandError(f"{path} has a line that is not an object; publish the runs again")
    return rows


def _version(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when a file is replaced; None if there is no file."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _checked(row: Row, path: Path) -> Row:
    """Return a row; raise CommandError if it lacks a value, or has one of the wrong type.

    NaN is a score that could not be computed; comparisons omit it.
    """
    needed = (*RUN_KEY, *ARM, *(("differs",) if "state" in row else ("metric",)))
    missing = [name for name in needed if name not in row]
    if missing:
        raise CommandError(f"{path} lacks {missing[0]}; write it again")
    _check_types(row, path)
    for name, value in row.items():
        kind = (
            (int, float) if NUMBERS.fullmatch(name) else str if LABELS.fullmatch(name) else object
        )
        if not isinstance(value, kind):
            raise CommandError(f"{path} has the {name} {str(value)[:60]!r}; write it again")
    if "state" in row:
        return row
    headline = headline_column(row["metric"])
    score = row.get(headline, math.nan)
    if isinstance(score, bool) or not isinstance(score, (int, float)) or math.isinf(score):
        raise CommandError(
            f"{path} has the {headline} {str(score)[:60]!r}, which is not a finite number; "
            "write it again"
        )
    return row


def _check_types(run: Mapping[str, Any], path: Path) -> None:
    """Raise CommandError if a run in a file has a value of the wrong type."""
    for name, kind in TYPES.items():
        value = run.get(name)
        if value is not None and not (isinstance(value, kind) and not isinstance(value, bool)):
            raise CommandError(f"{path} has the {name} {str(value)[:60]!r}; write it again")
    for subset, points in (run.get("curves") or {}).items():
        if not isinstance(points, list) or not all(map(_is_point, points)):
            raise CommandError(f"{path} has another value than a curve of {subset}; write it again")


def _is_point(point: Any) -> bool:
    """Return whether a value is a point of a curve: finite numbers by name."""
    return isinstance(point, dict) and all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in point.values()
    )
