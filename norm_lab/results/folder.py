"""Read a folder of results once; ``table.py`` makes tables of it.

A run has ``<experiment>/<norm>-seed<N>.json``, see ``result.py``: its result, or why it failed or
diverged. ``norm-plugin publish`` stores such a folder as two files, see ``publishing.py``:

    runs.jsonl          the values that all finished runs share, and the SHA-256 of the other file;
                        then a line per run: its other values
    outputs.jsonl.gz    a line per run: its curves, statistics, translations and windows

A folder may contain both forms. Of a run that is in both, the newer one counts. Reading imports
neither torch nor fairseq.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.config.spec import result_name
from norm_lab.config.studies import TUNED_FILE
from norm_lab.metrics import find_metric
from norm_lab.results.result import SCHEMA
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import parse_json

Row = dict[str, Any]
"""The values of a run by their dotted names, and those in OUTPUTS."""
RunKey = tuple[str, str, int]
RUN_KEY = ["experiment", "norm", "seed"]
"""The columns that name a run."""
ARM = ("run.arm.norm", "run.arm.placement")
RUNS, PUBLISHED_OUTPUTS = "runs.jsonl", "outputs.jsonl.gz"
NEXT_OUTPUTS = f"{PUBLISHED_OUTPUTS}.next"
"""The outputs of RUNS until ``publish``, which may be killed, has renamed them."""
DIGEST = "outputs_sha256"
"""The key of the SHA-256 of the outputs in the first line of RUNS; earlier versions wrote none."""
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
        published: the published runs.
        files: the SHA-256 of the file of each other run, and the run.
    """

    path: Path
    runs: dict[RunKey, Row]
    published: list[Row]
    files: dict[Path, tuple[str, Row]]

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
    files = {}
    for path in sorted(folder.glob("*.json")):
        if path.name == TUNED_FILE:
            continue
        content = _content(path)
        if content is not None:  # otherwise it was published since the folder was listed
            files[path] = sha256(content), _row_of_file(path, content)
    published = _published(folder)
    runs: dict[RunKey, Row] = {}
    for row in (*published, *(row for _, row in files.values())):
        add_run(runs, row)
    return Folder(folder, {key: runs[key] for key in sorted(runs)}, published, files)


def check_has_results(folder: Folder) -> None:
    """Raise CommandError if a folder has no finished run."""
    if not folder.finished:
        why = "has no results" if folder.path.exists() else "does not exist"
        raise CommandError(
            f"{folder.path} {why}. A finished run writes <norm>-seed<N>.json there, "
            "or below the --results or --work folder that it was given"
        )


def add_run(runs: dict[RunKey, Row], row: Row) -> bool:
    """Add a run, in place of one with the same key if that has no result or is not newer.

    Returns:
        whether it was added.
    """
    known = runs.get(run_key(row))
    added = known is None or _version_of_run(row) >= _version_of_run(known)
    if added:
        runs[run_key(row)] = row
    return added


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
    run = parse_json(content, path, finite=True)
    if not isinstance(run, dict) or ("state" not in run and run.get("schema") != SCHEMA):
        raise CommandError(
            f"{path} is not a result of schema {SCHEMA}; run it again, or publish the folder with "
            "the commit that wrote it"
        )
    row = _flat(run)
    check_run(row, path)
    if "state" not in row and headline_column(row["metric"]) not in row:
        raise CommandError(f"{path} lacks {headline_column(row['metric'])}; run it again")
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
    (shared, *own), outputs_of_run = _published_lines(folder)
    rows = [row if "state" in row else {**shared, **row} for row in own]
    outputs = {tuple(row.pop(name, None) for name in RUN_KEY): row for row in outputs_of_run}
    rows = [row | outputs.get(tuple(map(row.get, RUN_KEY)), {}) for row in rows]
    for row in rows:
        check_run(row, folder / RUNS)
    lost = sorted(outputs.keys() - {tuple(map(row.get, RUN_KEY)) for row in rows}, key=str)
    if lost:
        raise CommandError(
            f"{folder / RUNS} lacks {', '.join(map(str, lost[0]))}, which {PUBLISHED_OUTPUTS} has; "
            "restore both files, or publish the runs again"
        )
    twice = [key for key, count in Counter(map(run_key, rows)).items() if count > 1]
    if twice:
        raise CommandError(f"{folder / RUNS} has {', '.join(map(str, twice[0]))} twice")
    return rows


def _published_lines(folder: Path) -> tuple[list[Row], list[Row]]:
    """Return the lines of the two published files, of one version.

    ``publish`` writes the new outputs beside the old ones, then the runs, and then renames the new
    outputs. The runs name theirs by its digest; while neither file has it, they are read again.
    """
    path, before = folder / RUNS, None
    while (content := _content(path)) is not None:
        runs = _parsed_lines(content, path)
        if not runs:
            raise CommandError(f"{path} is empty; restore it, or publish the runs again")
        digest = runs[0].pop(DIGEST, None)
        for name in (NEXT_OUTPUTS, PUBLISHED_OUTPUTS):
            packed = _content(folder / name)
            if packed is None:
                continue
            # runs of an earlier version name no digest: they must not change meanwhile
            old = digest is None and name == PUBLISHED_OUTPUTS and content == before
            if old or digest == sha256(packed):
                return runs, _parsed_lines(_unpacked(packed, folder / name), folder / name)
        if content == before:
            raise CommandError(
                f"{folder / PUBLISHED_OUTPUTS} is missing, or not that of {path}; restore both "
                "files, or publish the runs again"
            )
        before = content
    return [{}], []


def complete_publishing(folder: Path) -> None:
    """Do the last step of a ``publish`` that was killed before it."""
    runs, outputs = _content(folder / RUNS), _content(folder / NEXT_OUTPUTS)
    if runs and outputs and _parsed_lines(runs, folder / RUNS)[0].get(DIGEST) == sha256(outputs):
        os.replace(folder / NEXT_OUTPUTS, folder / PUBLISHED_OUTPUTS)


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _unpacked(packed: bytes, path: Path) -> bytes:
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise CommandError(f"{path} is damaged ({error}); restore it") from error


def _parsed_lines(content: bytes, path: Path) -> list[Row]:
    lines = [parse_json(line, path, finite=True) for line in content.split(b"\n") if line]
    if not all(isinstance(line, dict) for line in lines):
        raise CommandError(f"{path} has a line that is no JSON object; restore it")
    return lines


def _content(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is none, or something else, as a pipe."""
    try:
        return path.read_bytes() if path.is_file() else None
    except FileNotFoundError:  # removed since then
        return None


def check_run(row: Row, path: Path) -> None:
    """Raise CommandError if a run lacks a value that every reader needs."""
    others = ("state", "differs") if "state" in row else ("metric",)
    lacking = [name for name in (*RUN_KEY, *ARM, *others) if name not in row]
    if lacking:
        raise CommandError(f"{path} lacks {lacking[0]}; run it again")
