"""The result of a run: written when it is finished, and read as a table of runs.

``norm-plugin result`` writes ``<experiment>/<norm>-seed<N>.json`` with the scores, settings,
commit, versions, data, size and speed of a run; unknown values are null. A run that failed or
diverged has ``<experiment>/failed/<norm>-seed<N>.json``. ``norm-plugin publish`` stores such a
folder as a few files, see ``publishing.py``:

    runs.csv          one row per run: every value in which the runs differ
    shared.json       the values that all runs share, by the same names
    curves.csv        the losses over training: one row per run, subset and update
    failed.csv        one row per run without a result, if there are any
    statistics.zip    files that are kept beside the results, see below
    translations.zip

A folder may hold both forms. The file of a run then takes precedence over its row. Reading imports
neither torch nor fairseq.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import enum
import gzip
import hashlib
import io
import json
import math
import platform
import re
import subprocess
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

import norm_plugin
from norm_lab.experiments.metrics import METRICS, find_metric, score_lines
from norm_lab.experiments.state import curves_of_log, read_stamp, utc_date
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write, parse_json, read_json, read_text, reading, write_text

SCHEMA = 3
Result = dict[str, Any]
Row = dict[str, Any]
"""The values of a finished run by their dotted names."""
Failure = dict[str, Any]
RunKey = tuple[str, str, int]
RUN_KEY = ["experiment", "norm", "seed"]
"""The columns that name a run."""
PLAIN = [*RUN_KEY, "placement", "metric", "score", "valid_loss", "train_loss", "split_seed"]
"""The first columns of a published table."""
RENAMED = {"git.commit": "commit", "git.dirty": "dirty"}
WHOLE = ("differs", "sources")
"""Values that remain a dictionary in one column, as their keys contain dots."""
FAILED = [*RUN_KEY, "differs", "state", "stage", "reason", "progress", "date"]
TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("experiment", "norm", "metric", "date", "state"), str),
    **dict.fromkeys(("scores", "curves", "kept", "differs", "settings", "data", "model"), dict),
    "seed": int,
}
"""The types of values that are read by name."""
NUMBERS = re.compile(r"model\.(norm_)?parameters|training\.\w+")
LABELS = re.compile(r"scores\.\w+\.(label|signature)")
"""The dotted names of values that tables show as numbers and as text."""
POINT = ["subset", "epoch", "updates", "loss", "nll_loss"]
RUNS, SHARED, CURVES, FAILURES = "runs.csv", "shared.json", "curves.csv", "failed.csv"


def result_name(norm: str, seed: int) -> str:
    """The file name of a result: ``powernorm-seed1.json``."""
    return f"{norm}-seed{seed}.json"


def result_path(result: Result, out: Path) -> Path:
    """The file of a result under ``out``, in a folder that exists afterwards."""
    path = out / result["experiment"] / result_name(result["norm"], result["seed"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {path.parent}: {error.strerror}") from error
    return path


def write_result(result: Result, out: Path) -> Path:
    """Write a result under ``out``, atomically, and return its path."""
    path = result_path(result, out)
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, f"{text}\n")
    return path


def check_result(result: Any, path: Path) -> Result:
    """The content of the file of a result; CommandError for an unknown schema or another name.

    Schema 2 existed for translation only, with the scores under ``bleu``.
    """
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema == 2:
        result |= {"schema": SCHEMA, "metric": "bleu", "scores": result.pop("bleu", None)}
    elif schema != SCHEMA or not {"norm", "seed"} <= result.keys():
        raise CommandError(f"{path} is not a result of schema {SCHEMA}; write it again")
    _check_types(result, path)
    if path.name != result_name(result["norm"], result["seed"]):
        raise CommandError(f"{path} holds {result['norm']}, seed {result['seed']}")
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
            raise CommandError(
                f"{path} has no curve of {subset}, but another value; write it again"
            )
    for kind, entry in (run.get("kept") or {}).items():
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise CommandError(f"{path} names no checksum of its {kind}; write it again")


def _is_point(point: Any) -> bool:
    """Whether a value is a point of a curve: finite numbers by name."""
    return isinstance(point, dict) and all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in point.values()
    )


def _check_row(row: Row, path: Path) -> None:
    """Raise CommandError if a row lacks what each has, or its score is no number.

    NaN is a score that could not be computed; it is left out of comparisons.
    """
    headline = _headline_column(row.get("metric", "bleu"))
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
            f"{path} has the {headline} {str(score)[:60]!r}, which is no finite number; write it "
            "again"
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
                row = {RENAMED.get(name, name): value for name, value in _flat(result).items()}
            except RecursionError as error:
                raise CommandError(f"{path} is nested too deeply; write it again") from error
            headline = _headline_column(row.get("metric", "bleu"))
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
    """Read a folder of results, while runs may write to it or it may be published.

    A finished run writes its result before it removes the record of its failure, and ``publish``
    writes its tables before it removes files. What is removed first is therefore read first.
    """
    digests: dict[Path, str] = {}
    failures = list(_json_files(folder / "failed", digests))
    for path, record in failures:
        named = isinstance(record, dict) and all(
            record.get(name) is not None for name in (*RUN_KEY, "state", "differs")
        )
        if not named:
            raise CommandError(f"{path} is not the record of a failure; remove it")
        _check_types(record, path)
    results = [check_result(content, path) for path, content in _json_files(folder, digests)]
    while True:
        shared = read_json(folder / SHARED) if (folder / SHARED).exists() else {}
        # without shared.json, runs.csv is not that of the published form
        rows = [{**shared, **row} for row in _csv_rows(folder / RUNS)] if shared else []
        for row in rows:
            _check_row(row, folder / RUNS)
        if not shared or read_json(folder / SHARED) == shared:  # it was not published meanwhile
            break
    curves = folder / CURVES
    return Folder(
        path=folder,
        results=sorted(results, key=lambda result: (result["norm"], result["seed"])),
        failures=[record for _, record in failures],
        published=rows,
        published_failures=list(_csv_rows(folder / FAILURES)),
        published_curves=pd.read_csv(curves) if curves.exists() else None,
        digests=digests,
    )


def _json_files(folder: Path, digests: dict[Path, str]) -> Iterator[tuple[Path, Any]]:
    """The JSON files of runs in a folder with their contents; adds their SHA-256 to ``digests``."""
    for path in sorted(set(folder.glob("*.json")) - {folder / SHARED}):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # removed since the folder was listed
            continue
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error
        yield path, parse_json(content, path)
        digests[path] = hashlib.sha256(content).hexdigest()


def read_results(*paths: str | Path) -> pd.DataFrame:
    """The table of finished runs: one row per run, sorted by norm and seed.

    The columns are the values of a result. A nested one has a dotted name:
    ``settings.optimization.lr``, ``data.checksum``, ``training.seconds``. These are added:

    - ``score``: the headline score of the ``metric``
    - ``valid_loss``: the lowest validation loss
    - ``train_loss``: the mean training loss of the last epoch. A study compares that of
      ``analysis.training_loss``, which is over the same updates for all runs
    - ``placement``: the placement of the norms
    - ``split_seed``: the seed of a random split of the corpus; missing for a fixed split
    - ``commit``, ``dirty``: the state of the code that scored the run
    - ``folder``: the folder that it was read from

    Args:
        paths: folders of experiments, with one file per run or in the published form.

    Raises:
        CommandError: a folder has no results, or a file has an unknown schema.
    """
    return table_of_runs([read_folder(Path(path)) for path in paths])


def table_of_runs(folders: Sequence[Folder]) -> pd.DataFrame:
    """:func:`read_results` of folders that were read."""
    rows = []
    for folder in folders:
        if not folder.rows:
            why = "it holds none" if folder.path.is_dir() else "there is no such folder"
            raise CommandError(
                f"no results in {folder.path}: {why}. A finished run writes <norm>-seed<N>.json "
                "there, or below the --results or --work folder that it was given"
            )
        rows += [{**row, "folder": folder.path} for row in folder.rows.values()]
    runs, curves = pd.DataFrame(rows), table_of_curves(folders)
    for column, subset, which in (("valid_loss", "valid", "min"), ("train_loss", "train", "last")):
        losses = curves[curves["subset"] == subset].groupby(RUN_KEY)["loss"].agg(which)
        runs[column] = pd.MultiIndex.from_frame(runs[RUN_KEY]).map(losses.to_dict())
    # a published table has an empty cell for NaN
    runs["score"] = [row.get(_headline_column(row["metric"]), math.nan) for row in rows]
    runs["placement"] = [placement_of(row) for row in rows]
    runs["split_seed"] = [row.get("data.settings.split_seed") for row in rows]
    return runs


def read_curves(*paths: str | Path) -> pd.DataFrame:
    """The losses over training, also of runs without a result: one row per run, subset and update.

    Returns:
        columns ``experiment``, ``norm``, ``seed``, ``subset`` (train or valid), ``epoch``,
        ``updates``, ``loss`` and ``nll_loss``, in bits.
    """
    return table_of_curves([read_folder(Path(path)) for path in paths])


def table_of_curves(folders: Iterable[Folder]) -> pd.DataFrame:
    """:func:`read_curves` of folders that were read."""
    tables = [pd.DataFrame(columns=[*RUN_KEY, *POINT])]
    for folder in folders:
        failed = [run for run in folder.failures if run_key(run) not in folder.rows]
        tables.append(
            pd.DataFrame(
                {**{key: run[key] for key in RUN_KEY}, "subset": subset, **point}
                for run in (*folder.results, *failed)
                for subset, points in (run.get("curves") or {}).items()
                for point in points
            )
        )
        if folder.published_curves is not None:
            again = {run_key(run) for run in (*folder.results, *failed)}
            keys = folder.published_curves[RUN_KEY].itertuples(index=False, name=None)
            tables.append(folder.published_curves[[key not in again for key in keys]])
    tables = [table for table in tables if not table.empty] or tables[:1]
    return pd.concat(tables, ignore_index=True).reindex(columns=[*RUN_KEY, *POINT])


def read_failures(*folders: Path) -> pd.DataFrame:
    """The runs without a result, one row each, sorted by norm and seed.

    Returns:
        columns ``experiment``, ``norm``, ``seed``, ``differs``, ``state`` (failed or diverged),
        ``stage``, ``reason``, ``progress`` and ``date``.
    """
    return table_of_failures(map(read_folder, folders))


def table_of_failures(folders: Iterable[Folder]) -> pd.DataFrame:
    """:func:`read_failures` of folders that were read."""
    rows = [row for folder in folders for row in folder.failed_rows.values()]
    return pd.DataFrame([{"progress": "", "date": "", **row} for row in rows], columns=FAILED)


def run_key(run: Mapping[str, Any]) -> RunKey:
    """What names a run: its experiment, its norm and its seed."""
    return run["experiment"], run["norm"], run["seed"]


def _headline_column(metric: str) -> str:
    """The column of the headline score of a metric."""
    return f"scores.{find_metric(metric).headline}.score"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names, without curves and None."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == "curves" or value is None:
            continue
        if isinstance(value, dict) and key not in WHOLE:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def placement_of(run: Mapping[str, Any]) -> str:
    """The placement of a run, from its row; fairseq's own models have a switch for it."""
    stock = "pre" if run.get("settings.model.encoder_normalize_before") else "post"
    everywhere = str(run.get("settings.model.norm_placement") or stock)
    encoder, decoder = (
        str(run.get(f"settings.model.norm_placement_{side}") or everywhere)
        for side in ("encoder", "decoder")
    )
    return encoder if encoder == decoder else f"encoder {encoder}, decoder {decoder}"


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file, without empty cells."""
    text = read_text(path) if path.exists() else ""
    for cells in csv.DictReader(io.StringIO(text)):
        yield {name: _value(cell) for name, cell in cells.items() if cell}


def _value(cell: str) -> Any:
    """The inverse of :func:`cell`."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def cell(value: Any) -> str:
    """A value as JSON; a string without quotes, unless it would be read as something else."""
    if _is_missing(value):
        return ""
    if isinstance(value, str) and value and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


# --- files that are kept beside a result ---------------------------------------------------------
#
#     powernorm-seed1.hyp.txt.gz           the translations that sacrebleu scored, a line a sentence
#     powernorm-seed1.statistics.json.gz   the record of --norm-record in short, and the singular
#                                          values of the embeddings
#
# The result names each file under ``kept``, with the SHA-256 of its uncompressed content, so that a
# file of another run is detected. A published folder has one archive for each kind. The 1,000 lines
# of Multi30k take 23 KB, the 6,750 of IWSLT14 about 170 KB, and statistics about 1 KB for each
# recorded update of a model with 8 layers.

TRANSLATIONS, STATISTICS = "translations", "statistics"
ENDINGS = {TRANSLATIONS: ".hyp.txt.gz", STATISTICS: ".statistics.json.gz"}
FORMAT = 1
LEFT_OUT = ("positions", "batch_", "running_")
"""Prefixes of values that are in the full record only; no figure draws them."""
DIGITS = 3
PARTS = ("sites", "layers")
Kept = dict[str, dict[str, str]]
"""For each kind, the ``file`` and the ``sha256`` of its content."""


def keep_files(
    result: Path, translations: Sequence[str] | None, record: Path | None, checkpoint: Path
) -> Kept:
    """Write the files beside a result, and return its entry ``kept``.

    Args:
        result: the JSON file of the result.
        translations: the translations as sacrebleu scores them; None for other metrics.
        record: the file of ``--norm-record``, if any.
        checkpoint: the evaluated checkpoint; the singular values of its embeddings are stored.
    """
    from norm_plugin.checkpoints.files import load_checkpoint  # they import torch
    from norm_plugin.checkpoints.spectrum import spectra_of

    entries = {}
    if translations is not None:
        text = "".join(f"{line}\n" for line in translations)
        entries[TRANSLATIONS] = write_kept(result, TRANSLATIONS, text)
    statistics = {
        "format": FORMAT,
        "record": None if record is None else compact(record_lines(record)),
        "spectra": [
            {
                "side": spectrum.side,
                "shape": spectrum.shape,
                "values": [_significant(value, 5) for value in spectrum.values],
            }
            for spectrum in spectra_of(load_checkpoint(checkpoint), checkpoint)
        ],
    }
    text = json.dumps(statistics, separators=(",", ":"), allow_nan=False)
    entries[STATISTICS] = write_kept(result, STATISTICS, f"{text}\n")
    return entries


def write_kept(result: Path, kind: str, text: str) -> dict[str, str]:
    """Write one file beside a result; returns its name and checksum."""
    path = kept_file(result, kind)
    content = text.encode("utf-8")
    with atomic_write(path) as stream:
        stream.write(gzip.compress(content, mtime=0))
    return {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()}


def kept_file(result: Path, kind: str) -> Path:
    """The file of a kind, one of ``ENDINGS``, beside the JSON file of a result."""
    return result.with_name(result.name.removesuffix(".json") + ENDINGS[kind])


def read_kept(run: Mapping[str, Any], kind: str) -> str | None:
    """The text of a kept file of a run; None if the run has none.

    Args:
        run: the row of the run in the table of runs.

    Raises:
        CommandError: the file is missing or damaged, or belongs to another run.
    """
    checksum = run.get(f"kept.{kind}.sha256")
    if not isinstance(checksum, str):
        return None
    path = kept_file(Path(run["folder"], result_name(run["norm"], run["seed"])), kind)
    content = _read(path, kind)
    if hashlib.sha256(content).hexdigest() != checksum and path.exists():
        # a run that is repeated writes its files before its result: this is still the published one
        archived = _read_archived(path, kind)
        content = content if archived is None else archived
    if hashlib.sha256(content).hexdigest() != checksum:
        raise CommandError(
            f"{path} has another checksum than the result of {run['norm']} seed {run['seed']} "
            "names, so it belongs to another run"
        )
    return content.decode("utf-8")


def read_statistics(path: Path) -> dict[str, Any]:
    """Read a file of statistics: ``record``, which may be None, and ``spectra``.

    Raises:
        CommandError: the file cannot be read, or has another version.
    """
    return statistics_in(_read(path, STATISTICS).decode("utf-8"), path)


def statistics_in(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of the statistics file ``path``."""
    statistics = parse_json(text, path)
    found = statistics.get("format") if isinstance(statistics, dict) else None
    if found != FORMAT:
        raise CommandError(f"{path} has format {found}; this version reads format {FORMAT}")
    return dict(statistics)


def _read(path: Path, kind: str) -> bytes:
    """The content of a kept file, from the file itself or from the archive beside it."""
    archived = None if path.exists() else _read_archived(path, kind)
    try:
        return gzip.decompress(path.read_bytes()) if archived is None else archived
    except FileNotFoundError as error:
        raise CommandError(
            f"{path} is missing, and a result names it; copy it there, or remove the result and "
            "start its run again, which repeats the score stage alone"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise CommandError(f"cannot read {path}: {error}") from error


def _read_archived(path: Path, kind: str) -> bytes | None:
    """The content of a kept file from the archive beside it; None if it is not there."""
    archive, name = path.with_name(f"{kind}.zip"), path.name.removesuffix(".gz")
    if not archive.exists():
        return None
    try:
        with zipfile.ZipFile(archive) as members:
            return members.read(name) if name in members.namelist() else None
    except (OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        # RuntimeError: it is encrypted, or has an unknown compression
        raise CommandError(f"cannot read {name} in {archive}: {error}") from error


def record_lines(path: Path) -> list[dict[str, Any]]:
    """The header and the records in a file of ``--norm-record``.

    Raises:
        CommandError: the file is missing, has no records, or has another version.
    """
    from norm_plugin.models.recording import read_records  # its package imports fairseq

    try:
        with reading(path):
            lines = read_records(path)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if len(lines) < 2:
        raise CommandError(f"{path} holds no record yet")
    return lines


def compact(lines: Sequence[dict[str, Any]], digits: int | None = DIGITS) -> dict[str, Any]:
    """A record of ``--norm-record`` by columns, rounded and without ``LEFT_OUT``.

    Args:
        digits: significant digits; None keeps all digits and all values.

    Returns:
        the header; ``updates``; and for each part, place and name of a value the list of its values
        over the updates, None where it was not recorded.
    """
    header, *updates = lines
    columns: dict[str, dict[str, dict[str, list[Any]]]] = {part: {} for part in PARTS}
    for index, line in enumerate(updates):
        for part in PARTS:
            for place, values in line[part].items():
                names = columns[part].setdefault(place, {})
                for name, value in values.items():
                    if digits is None or not name.startswith(LEFT_OUT):
                        column = names.setdefault(name, [None] * len(updates))
                        column[index] = _significant(value, digits)
    header = {key: header[key] for key in ("every", "norms")} | {"channels": header["sites"]}
    return {**header, "updates": [line["update"] for line in updates], **columns}


def _significant(value: Any, digits: int | None) -> Any:
    """A value with so many significant digits; None if it is not finite, as JSON has no NaN."""
    if isinstance(value, list):
        return [_significant(element, digits) for element in value]
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")


# --- the result of a finished run ----------------------------------------------------------------


def result_command(argv: Sequence[str]) -> int:
    """The command ``result``; prints a short summary."""
    from norm_plugin.checkpoints.user_dirs import import_user_dir
    from norm_plugin.models.plan import RECORDS

    args = _result_parser(RECORDS).parse_args(argv)
    import_user_dir(args.user_dir)
    result, metric = collect_result(args), find_metric(args.metric)
    path = result_path(result, args.out)
    record = args.last.with_name(RECORDS) if args.record is None else args.record
    has_record = args.record is not None or record.exists()
    translations = metric.texts(args.log, args.data)
    # the kept files first, so that whoever finds a result finds all of it
    entries = keep_files(path, translations, record if has_record else None, args.checkpoint)
    write_result({**result, "kept": entries}, args.out)
    training = result["training"]
    print(
        f"{args.experiment} {args.norm} seed {args.seed} ({args.split})",
        *score_lines(result["scores"], metric.digits),
        f"  model      {result['model']['parameters']:,} parameters",
        f"  training   {training['updates']} updates in {training['seconds']} s, "
        f"{training['updates_per_second']} updates/s",
        f"  written to {path}",
        sep="\n",
    )
    return 0


def _result_parser(records: str) -> argparse.ArgumentParser:
    from norm_plugin.checkpoints.user_dirs import add_user_dir

    parser = argparse.ArgumentParser(
        prog="norm-plugin result",
        description="Write the result of a finished run to OUT/<experiment>/<norm>-seed<N>.json.",
    )
    parser.add_argument("--experiment", required=True, help="name of the experiment")
    parser.add_argument("--norm", required=True, help="the label of the run")
    parser.add_argument("--seed", type=int, required=True)
    for flag, text in (
        ("--differs", "the settings that differ from the recipe"),
        ("--sources", "the digests of the files of the user dir that the training depends on"),
    ):
        parser.add_argument(flag, type=json.loads, default={}, metavar="JSON", help=text)
    parser.add_argument(
        "--metric", choices=list(METRICS), default="bleu", help="default: %(default)s"
    )
    parser.add_argument(
        "--log",
        "--generate-log",
        type=Path,
        required=True,
        metavar="FILE",
        help="the output of the evaluation: for BLEU, of fairseq-generate --remove-bpe",
    )
    for flag, required, text in (
        ("--checkpoint", True, "the checkpoint that was evaluated: for BLEU, the average"),
        ("--last", True, "the run's last checkpoint, for settings, time and speed"),
        ("--train-log", False, "the output of fairseq-train, for the losses over training"),
        ("--memory", False, "a file with the peak memory of the training in bytes; may be missing"),
        ("--record", False, f"the file of --norm-record (default: {records} beside --last)"),
    ):
        parser.add_argument(flag, type=Path, required=required, metavar="FILE", help=text)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="the prepared corpus, with manifest.json and bin/",
    )
    parser.add_argument("--split", default="test", help="default: %(default)s")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("work") / "results",  # what is in results/ is published, and tracked by git
        metavar="DIR",
        help="default: %(default)s",
    )
    add_user_dir(parser)
    return parser


def collect_result(args: argparse.Namespace) -> Result:
    """The result of a finished run, from its files; CommandError if they do not agree."""
    from norm_plugin.checkpoints.files import load_checkpoint  # it imports torch

    manifest = read_json(args.data / "manifest.json")
    last, decoded = load_checkpoint(args.last), load_checkpoint(args.checkpoint)
    cfg = last.get("cfg") or {}
    common = cfg.get("common") or {}
    if common.get("seed") not in (None, args.seed):
        raise CommandError(
            f"--seed {args.seed}, but {args.last} was trained with seed {common['seed']}"
        )
    memory = None if args.memory is None else read_stamp(args.memory)
    model = describe_model(args.checkpoint, args.data / "bin")
    return {
        "schema": SCHEMA,
        "experiment": args.experiment,
        "norm": args.norm,
        "differs": args.differs,
        "sources": args.sources,
        "seed": args.seed,
        "sites": model.pop("sites"),
        "metric": args.metric,
        "scores": find_metric(args.metric).scores(args.log, args.data, args.split),
        "split": args.split,
        "model": model,
        "training": {
            **describe_training(last),
            "peak_memory": None if memory is None else int(memory),
        },
        "curves": None if args.train_log is None else curves_of_log(args.train_log),
        "averaged_from": decoded.get("averaged_from"),
        "running_stats": decoded.get("running_stats"),
        "settings": plain_settings(cfg),
        "data": {
            "corpus": manifest.get("corpus"),
            "settings": manifest.get("settings"),
            "checksum": manifest.get("checksum"),
            "training_pairs": training_pairs(manifest),
        },
        "git": git_state(Path(__file__).parent),
        "versions": versions(),
        "machine": machine(cpu=bool(common.get("cpu"))),
        "date": utc_date(time.time()),
    }


def describe_training(state: dict[str, Any]) -> dict[str, Any]:
    """The length, time and speed of a training, from its last checkpoint; None if unknown.

    ``seconds`` is the wall time over all resumes, including validation and saving. The speeds are
    those of the training steps alone (``train_wall``): forward, backward and optimizer. fairseq
    resets its meters when a run is resumed at the end of an epoch, so the speeds are means over the
    ``measured_updates`` since then. ``tokens`` are target tokens, as fairseq counts them.
    """
    from norm_plugin.checkpoints.files import num_updates

    extra = state.get("extra_state") or {}
    epoch = (extra.get("train_iterator") or {}).get("epoch")
    checkpoint = (state.get("cfg") or {}).get("checkpoint") or {}
    # a meter is stored as (priority, name, class, state), under its group
    default = (extra.get("metrics") or {}).get("default", [])
    meters = {name: meter for _, name, _, meter in default}
    wall, batch = meters.get("train_wall", {}), meters.get("wpb", {})
    sums = (wall.get("sum"), batch.get("count"), batch.get("sum"))
    seconds, updates, tokens = (float(value or 0) for value in sums)
    measured = bool(seconds and updates and tokens)
    return {
        "updates": num_updates(state),
        "epochs": None if epoch is None else epoch - 1,  # the stored one is the next to finish
        "seconds": _rounded(extra.get("previous_training_time"), 1),
        "updates_per_second": _rounded(updates / seconds, 3) if measured else None,
        "tokens_per_second": _rounded(tokens / seconds, 1) if measured else None,
        "measured_updates": int(updates) if measured else None,
        "best_valid": {
            "metric": checkpoint.get("best_checkpoint_metric"),
            "value": _rounded(extra.get("best"), 4),
        },
    }


def _rounded(value: Any, digits: int) -> float | None:
    """A rounded number, also of a tensor; None if it is not finite, as JSON has no NaN."""
    finite = value is not None and math.isfinite(value)
    return round(float(value), digits) if finite else None


def describe_model(checkpoint: Path, binarized: Path) -> dict[str, Any]:
    """The size and the norms of the model in a checkpoint.

    Args:
        binarized: the folder of the binarized data, for the dictionaries.

    Returns:
        ``parameters``, the number of trainable parameters, with tied ones counted once;
        ``norm_parameters``, the number of those in norms; and ``sites``, the norm of every site
        (None for a model of fairseq's own).

    Raises:
        CommandError: model and data do not fit together.
    """
    from norm_plugin.checkpoints.building import build_model  # it imports fairseq
    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.plan import make_plan
    from norm_plugin.models.sites import sides_of

    model, cfg, _ = build_model(checkpoint, binarized)
    ours = isinstance(model, NormModel)
    plan = model.cfg.plan if ours else make_plan(cfg.model, sides_of(model))
    norms = {
        parameter
        for choice in plan.sites
        for path, module in model.named_modules()
        if choice.site.is_at(path)
        for parameter in module.parameters()
    }
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "norm_parameters": sum(p.numel() for p in norms if p.requires_grad),
        "sites": {choice.site.name: choice.norm for choice in plan.sites} if ours else None,
    }


def training_pairs(manifest: Mapping[str, Any]) -> int | None:
    """The number of training examples in a prepared corpus; None for running text or if unknown."""
    if (manifest.get("settings") or {}).get("unit"):
        return None
    counts = manifest.get("counts") or {}
    text = counts.get("bpe") or counts.get("tok") or {}
    pairs: int | None = (text.get(f"train.{manifest.get('source')}") or {}).get("lines")
    return pairs


# --- code, versions, machine and settings --------------------------------------------------------

SECTIONS = (
    *("common", "model", "task", "criterion", "dataset", "optimization", "optimizer"),
    *("lr_scheduler", "checkpoint", "distributed_training"),
)
"""The sections of fairseq's configuration that determine a run."""
PATH_KEYS = {
    *("aim_repo", "continue_once", "data", "distributed_init_method", "distributed_port"),
    *("finetune_from_model", "log_file", "plasma_path", "restore_file", "save_dir"),
    *("tensorboard_logdir", "user_dir"),
}
"""Keys of settings that are paths or addresses; others are recognized by their value."""
ABSOLUTE_PATH = re.compile(r"""(^|[\s"'=:,;(\[{])(~?/|[A-Za-z]:\\)[^\s]""")
NOT_CODE = (":!results", ":!benchmarks/results", ":!docs", ":!*.md", ":!*.tuned.json")
"""Files whose changes do not affect a run; tuned values are also among its settings."""


def plain_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in a checkpoint in types that JSON has, without paths.

    fairseq stores all flags of a command line under ``model``. Those that another section has with
    the same value are left out there.
    """
    plain = _plain(cfg).items()
    sections = {name: values if isinstance(values, dict) else {} for name, values in plain}
    elsewhere: dict[str, list[Any]] = {}
    for name, section in sections.items():
        elsewhere.setdefault(name, []).append(section.get("_name"))
        if name != "model":
            for key, value in section.items():
                elsewhere.setdefault(key, []).append(value)
    model = {
        key: value
        for key, value in sections.get("model", {}).items()
        if key in ("_name", "arch") or value not in elsewhere.get(key, [])
    }
    return {name: sections.get(name, {}) for name in SECTIONS} | {"model": model}


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items() if not _is_path(key, item)}
        return {key: _plain(item) for key, item in sorted(items.items())}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value if not _is_path("", item)]
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if torch.is_tensor(value):
        return value.tolist()
    return type(value).__name__


def _is_path(key: Any, value: Any) -> bool:
    return key in PATH_KEYS or (isinstance(value, str) and bool(ABSOLUTE_PATH.search(value)))


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages; None if not installed."""
    return {
        "python": platform.python_version(),
        "norm_plugin": norm_plugin.__version__,
        "torch": _version("torch"),
        "fairseq": _version("fairseq-fixed") or _version("fairseq"),
        "sacrebleu": _version("sacrebleu"),
        "sacremoses": _version("sacremoses"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any]:
    """The ``commit`` of the checkout that tracks ``folder``, and whether its code is ``dirty``.

    Both are None if no checkout tracks the folder, as for an installed package.
    """
    tracked = _git(folder, "ls-files", ".")
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    root = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return {"commit": None, "dirty": None}
    changes = _git(Path(root), "status", "--porcelain", "--", ".", *NOT_CODE)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def short_commit(git: Mapping[str, Any]) -> str:
    """The result of :func:`git_state` as text: ``0123456789 and changes``."""
    return (git.get("commit") or "unknown")[:10] + (" and changes" if git.get("dirty") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        finished = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return finished.stdout.strip()


def machine(cpu: bool) -> dict[str, Any]:
    """The device, threads and CPU instructions of this process.

    Args:
        cpu: whether ``--cpu`` was given; otherwise fairseq uses a GPU if there is one.
    """
    import torch

    on_gpu = torch.cuda.is_available() and not cpu
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        # whether a preloaded library makes MKL take the CPU for Intel's: docs/troubleshooting.md
        "mkl_as_on_intel": hasattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true"),
    }
