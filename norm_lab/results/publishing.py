"""The command ``publish``: store the results of a folder as one table of runs.

    runs.csv          one row per run: every value in which the runs differ
    shared.json       the values that all runs share, by the same names
    curves.csv        the losses over training: one row per run, subset and update
    failed.csv        one row per run without a result, if there are any
    statistics.zip    files that are stored with the results
    translations.zip

A folder may contain both forms. The file of a run then takes precedence over its row. Publishing
removes only files that it has read: what a run writes meanwhile is kept, and no run is lost or
replaced by an older one.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gzip
import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from norm_lab.config.spec import result_name
from norm_lab.results.artifacts import ENDINGS, artifact_path, read_artifact
from norm_lab.results.folder import (
    CURVES,
    FAILURES,
    PLAIN,
    RUNS,
    SHARED,
    TEXTS_OF_CURVES,
    Folder,
    RunKey,
    cell,
    csv_cells,
    read_folder,
    run_key,
)
from norm_lab.results.table import Results
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write, write_text

LOCK = ".publishing"


@dataclass(frozen=True)
class Published:
    """The result of :func:`publish`.

    Attributes:
        runs: the number of finished runs.
        failures: the number of runs without a result.
        replaced: the runs of which the target had another version, which was not newer.
    """

    runs: int
    failures: int
    replaced: list[RunKey]


def publish(source: Path, target: Path) -> Published:
    """Store the results of a folder in the published form.

    Args:
        target: may be ``source``. Its files of the published runs are replaced.

    Raises:
        CommandError: there are no results; ``target`` has runs, finished or not, that ``source``
            lacks, or newer ones; an artifact is missing or of another run; or another command is
            publishing to ``target``.
    """
    read = Results.read(source)
    runs = read.runs  # raises for a source without results, before a folder is created
    target.mkdir(parents=True, exist_ok=True)
    with _lock(target):
        theirs = read_folder(target)
        if source.samefile(target):
            read = Results([theirs])
            runs = read.runs
        (ours,), failures = read.folders, read.failures
        _check_no_run_is_lost(ours, theirs)
        _check_no_newer_run_is_replaced(ours, theirs)
        curves, failed = _curves_csv(read.curves), _csv(failures.map(cell), FAILURES)
        tables = _tables_of_runs(runs)
        archive_kept(runs.to_dict("records"), target)
        write_text(target / CURVES, curves)
        if failures.empty:
            (target / FAILURES).unlink(missing_ok=True)  # the runs in it now have a result
        else:
            write_text(target / FAILURES, failed)
        for name, text in tables:
            write_text(target / name, text)
        for path, digest in theirs.digests.items():  # they would take precedence
            _remove_unchanged(path, digest, _digest)
        for result in theirs.results:
            path = target / result_name(result["norm"], result["seed"])
            for kind, entry in (result.get("kept") or {}).items():
                _remove_unchanged(artifact_path(path, kind), entry["sha256"], _artifact_digest)
    return Published(len(runs), len(failures), _replaced(ours, theirs))


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Keep other ``publish`` commands from writing the same tables; CommandError if one does."""
    path = target / LOCK
    with open(path, "a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(path.stat(), os.fstat(stream.fileno()))
        except (BlockingIOError, FileNotFoundError):  # or one has just ended
            held = False
        if not held:
            raise CommandError(f"{target} is being published by another command; try again later")
        try:
            yield
        finally:
            path.unlink()


def _check_no_run_is_lost(ours: Folder, theirs: Folder) -> None:
    """Raise CommandError if the target has runs, finished or not, that the source lacks."""
    known = ours.rows.keys() | ours.failed_rows.keys()
    lost = sorted((theirs.rows.keys() - ours.rows.keys()) | (theirs.failed_rows.keys() - known))
    if lost:
        raise CommandError(
            f"{theirs.path} has runs that {ours.path} lacks, {', '.join(map(str, lost))}; copy the "
            f"files of {ours.path} and of its failed/ there, and publish {theirs.path} to itself"
        )


def _check_no_newer_run_is_replaced(ours: Folder, theirs: Folder) -> None:
    """Raise CommandError if either folder has a newer form of a run than the published one."""
    published = ours.failed_rows | ours.rows
    for folder in (ours, theirs):
        for run in (
            *folder.results,
            *folder.published,
            *folder.failures,
            *folder.published_failures,
        ):
            key, date = run_key(run), run.get("date") or ""
            older = published[key].get("date") or ""
            if date > older:
                raise CommandError(
                    f"{folder.path} has the run {key} of {date} ({run.get('state', 'finished')}), "
                    f"which is newer than that of {older or 'an unknown date'} in {ours.path}; "
                    "remove the one that is not wanted, or publish to another folder"
                )


def _replaced(ours: Folder, theirs: Folder) -> list[RunKey]:
    """Return the runs of the target that were published in another version."""
    before, after = theirs.failed_rows | theirs.rows, ours.failed_rows | ours.rows
    return [key for key in sorted(before) if _values(before[key]) != _values(after[key])]


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row, without those that a published table adds or omits."""
    return {
        name: value
        for name, value in row.items()
        if name not in PLAIN and not name.endswith(".file") and name not in ("curves", "progress")
    }


def archive_kept(runs: Iterable[Mapping[str, Any]], target: Path) -> None:
    """Put the artifacts of runs into one archive per kind in ``target``.

    Args:
        runs: rows of the table of runs.

    Raises:
        CommandError: an artifact is missing or damaged, or belongs to another run.
    """
    runs = list(runs)
    for kind in ENDINGS:
        contents = {}
        for run in runs:
            text = read_artifact(run, kind)
            if text is not None:
                path = artifact_path(target / result_name(run["norm"], run["seed"]), kind)
                contents[path.name.removesuffix(".gz")] = text
        if not contents:
            continue
        with (
            atomic_write(target / f"{kind}.zip") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as members,
        ):
            for name, text in contents.items():
                members.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)


def _tables_of_runs(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the names and texts of ``runs.csv`` and ``shared.json``, in the order of writing."""
    # the names of the runs determine those of the artifacts
    texts = runs.drop(columns=["folder", *runs.filter(regex=r"^kept\..*\.file$")]).map(cell)
    texts = texts.loc[:, texts.any()]
    varying = [name for name in texts if texts[name].nunique() > 1 or name in PLAIN]
    varying.sort(key=lambda name: (PLAIN.index(name) if name in PLAIN else len(PLAIN), name))
    first = runs.astype(object).iloc[0]
    shared = {name: first[name] for name in sorted(texts) if name not in varying}
    # first with every value, so that neither the old nor the new shared.json makes a row wrong
    return [
        (RUNS, _csv(texts, RUNS)),
        (SHARED, json.dumps(shared, indent=1, ensure_ascii=False) + "\n"),
        (RUNS, _csv(texts[varying], RUNS)),
    ]


def _curves_csv(curves: pd.DataFrame) -> str:
    texts = {name: curves[name].map(cell) for name in TEXTS_OF_CURVES}
    text: str = curves.assign(**texts).to_csv(index=False)
    return text


def _csv(cells: pd.DataFrame, name: str) -> str:
    """Return a table of cells as CSV; CommandError if it would be read otherwise."""
    text: str = cells.to_csv(index=False)
    rows = [{key: cell for key, cell in row.items() if cell} for row in cells.to_dict("records")]
    with suppress(csv.Error):
        if list(csv_cells(text)) == rows:
            return text
    raise CommandError(f"{name} would not be read as it is written; nothing was changed")


def _remove_unchanged(path: Path, digest: str, digest_of: Callable[[Path], str]) -> None:
    """Remove a file if it is still the one that was read; a run may have written a new one."""
    aside = path.with_name(f".{os.getpid()}.removed")
    try:
        if digest_of(path) != digest:
            return
        os.rename(path, aside)
    except FileNotFoundError:
        return
    if digest_of(aside) != digest:  # it was written between the two lines above
        with suppress(FileExistsError):  # and written once more
            os.link(aside, path)
    aside.unlink()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _artifact_digest(path: Path) -> str:
    """Return the checksum by which a result names an artifact; empty for a damaged file."""
    try:
        return hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""


def publish_command(argv: Sequence[str] | None = None) -> int:
    """Run the command ``publish``."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin publish",
        description="Store the results of an experiment as one table of runs, with their curves "
        "and the files that are stored with them.",
    )
    parser.add_argument("source", type=Path, metavar="FROM", help="as work/results/multi30k")
    parser.add_argument(
        "target", type=Path, metavar="TO", help="as results/multi30k; may equal FROM"
    )
    args = parser.parse_args(argv)
    published = publish(args.source, args.target)
    print(f"{published.runs} runs: {args.target / RUNS}")
    if published.failures:
        print(f"{published.failures} without a result: {args.target / FAILURES}")
    for experiment, norm, seed in published.replaced:
        print(f"replaced an older run: {experiment}, {norm}, seed {seed}")
    return 0
