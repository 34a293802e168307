"""The results of runs: one file for each run, and the table of runs for the analysis.

A finished run writes ``<experiment>/<norm>-seed<N>.json``, and one that failed or diverged
``<experiment>/failed/<norm>-seed<N>.json``. ``publish`` stores such a folder as a few files:

    runs.csv          one row per run: every value in which the runs differ
    shared.json       the values that all runs share, by the same names
    curves.csv        the losses over training: one row per run, subset and update
    failed.csv        one row per run without a result, if there are any
    statistics.zip    files that are kept beside the results, see below
    translations.zip

A folder may hold both forms. The file of a run then takes precedence over its row.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.commands.command_line import (
    CommandError,
    read_json,
    read_text,
    reading,
    replacing,
    write_text,
)
from norm_plugin.experiments.metrics import find_metric, score_lines

SCHEMA = 3
Result = dict[str, Any]
RUN_KEY = ["experiment", "norm", "seed"]
"""The columns that name a run."""
PLAIN = [*RUN_KEY, "placement", "metric", "score", "valid_loss", "train_loss", "split_seed"]
"""The first columns of a published table."""
RENAMED = {"git.commit": "commit", "git.dirty": "dirty"}
WHOLE = ("differs", "sources")
"""Values that remain a dictionary in one column, as their keys contain dots."""
FAILED = [*RUN_KEY, "differs", "state", "stage", "reason", "progress"]
POINT = ["subset", "epoch", "updates", "loss", "nll_loss"]
RUNS, SHARED, CURVES, FAILURES = "runs.csv", "shared.json", "curves.csv", "failed.csv"


def result_name(norm: str, seed: int) -> str:
    """The file name of a result: ``powernorm-seed1.json``."""
    return f"{norm}-seed{seed}.json"


def write_result(result: Result, out: Path) -> Path:
    """Write a result under ``out``, atomically, and return its path."""
    path = out / result["experiment"] / result_name(result["norm"], result["seed"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {path.parent}: {error.strerror}") from error
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, f"{text}\n")
    return path


def read_result(path: Path) -> Result:
    """Read a result; CommandError for an unknown schema.

    Schema 2 existed for translation only, with the scores under ``bleu``.
    """
    result = read_json(path)
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema == 2:
        result |= {"schema": SCHEMA, "metric": "bleu", "scores": result.pop("bleu", None)}
    elif schema != SCHEMA or not {"norm", "seed"} <= result.keys():
        raise CommandError(f"{path} is not a result of schema {SCHEMA}; write it again")
    return dict(result)


def read_result_files(folder: Path) -> list[Result]:
    """The results in the JSON files of a folder, sorted by norm and seed."""
    results = []
    for path in sorted(set(folder.glob("*.json")) - {folder / SHARED}):
        result = read_result(path)
        if path.name != result_name(result["norm"], result["seed"]):
            raise CommandError(f"{path} holds {result['norm']}, seed {result['seed']}")
        results.append(result)
    return sorted(results, key=lambda result: (result["norm"], result["seed"]))


def read_results(*paths: str | Path) -> pd.DataFrame:
    """The table of finished runs: one row per run, sorted by norm and seed.

    The columns are the values of a result. A nested one has a dotted name:
    ``settings.optimization.lr``, ``data.checksum``, ``training.seconds``. These are added:

    - ``score``: the headline score of the ``metric``
    - ``valid_loss``, ``train_loss``: the lowest validation loss and the last training loss
    - ``placement``: the placement of the norms
    - ``split_seed``: the seed of a random split of the corpus; missing for a fixed split
    - ``commit``, ``dirty``: the state of the code that scored the run
    - ``folder``: the folder that it was read from

    Args:
        paths: folders of experiments, with one file per run or in the published form.

    Raises:
        CommandError: a folder has no results, or a file has an unknown schema.
    """
    rows, folders = [], [Path(path) for path in paths]
    for folder in folders:
        of_folder = _rows(folder)
        if not of_folder:
            why = "it holds none" if folder.is_dir() else "there is no such folder"
            raise CommandError(
                f"no results in {folder}: {why}. A finished run writes <norm>-seed<N>.json "
                "there, or below the --results or --work folder that it was given"
            )
        rows += [{**row, "folder": folder} for row in of_folder]
    runs, curves = pd.DataFrame(rows), read_curves(*folders)
    for column, subset, which in (("valid_loss", "valid", "min"), ("train_loss", "train", "last")):
        losses = curves[curves["subset"] == subset].groupby(RUN_KEY)["loss"].agg(which)
        runs[column] = pd.MultiIndex.from_frame(runs[RUN_KEY]).map(losses.to_dict())
    runs["score"] = [row[_headline_column(row["metric"])] for row in rows]
    runs["placement"] = [placement_of(row) for row in rows]
    runs["split_seed"] = [row.get("data.settings.split_seed") for row in rows]
    return runs


def read_curves(*paths: str | Path) -> pd.DataFrame:
    """The losses over training, also of runs without a result: one row per run, subset and update.

    Returns:
        columns ``experiment``, ``norm``, ``seed``, ``subset`` (train or valid), ``epoch``,
        ``updates``, ``loss`` and ``nll_loss``, in bits.
    """
    tables = [pd.DataFrame(columns=[*RUN_KEY, *POINT])]
    for folder in map(Path, paths):
        results = read_result_files(folder)
        finished = {_key(row) for row in _rows(folder)}
        failed = [run for run in _failure_files(folder) if _key(run) not in finished]
        tables.append(
            pd.DataFrame(
                {**{key: run[key] for key in RUN_KEY}, "subset": subset, **point}
                for run in (*results, *failed)
                for subset, points in (run.get("curves") or {}).items()
                for point in points
            )
        )
        if (folder / CURVES).exists():
            published = pd.read_csv(folder / CURVES)
            again = {_key(run) for run in (*results, *failed)}
            keys = published[RUN_KEY].itertuples(index=False, name=None)
            tables.append(published[[key not in again for key in keys]])
    tables = [table for table in tables if not table.empty] or tables[:1]
    return pd.concat(tables, ignore_index=True).reindex(columns=[*RUN_KEY, *POINT])


def read_failures(*folders: Path) -> pd.DataFrame:
    """The runs without a result, one row each, sorted by norm and seed.

    Returns:
        columns ``experiment``, ``norm``, ``seed``, ``differs``, ``state`` (failed or diverged),
        ``stage``, ``reason`` and ``progress``.
    """
    rows = []
    for folder in folders:
        finished = {_key(row) for row in _rows(folder)}
        failures = {_key(row): row for row in _csv_rows(folder / FAILURES)}
        failures |= {_key(record): record for record in _failure_files(folder)}
        rows += [failures[key] for key in sorted(failures) if key not in finished]
    return pd.DataFrame([{"progress": "", **row} for row in rows], columns=FAILED)


def _failure_files(folder: Path) -> list[dict[str, Any]]:
    return [read_json(path) for path in sorted(folder.glob("failed/*.json"))]


def _key(run: Mapping[str, Any]) -> tuple[str, str, int]:
    return run["experiment"], run["norm"], run["seed"]


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The runs of a folder, sorted by norm and seed, with their values by dotted names."""
    shared = read_json(folder / SHARED) if (folder / SHARED).exists() else {}
    # without shared.json, runs.csv is not that of the published form
    published = _csv_rows(folder / RUNS) if shared else []
    rows = {_key(row): row for row in ({**shared, **row} for row in published)}
    for result in read_result_files(folder):
        row = {RENAMED.get(name, name): value for name, value in _flat(result).items()}
        needed = ["experiment", "metric", _headline_column(row.get("metric", "bleu"))]
        missing = [name for name in needed if name not in row]
        if missing:
            path = folder / result_name(result["norm"], result["seed"])
            raise CommandError(f"{path} lacks {missing[0]}; write it again")
        rows[_key(result)] = row
    return [rows[key] for key in sorted(rows)]


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
    """The inverse of :func:`_cell`."""
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _cell(value: Any) -> str:
    """A value as JSON; a string without quotes, unless it would be read as something else."""
    if _is_missing(value):
        return ""
    if isinstance(value, str) and value and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def publish(source: Path, target: Path) -> int:
    """Store the results of a folder in the published form; returns the number of runs.

    Args:
        target: may be ``source``, whose JSON files are then replaced.

    Raises:
        CommandError: no results, or ``target`` has runs that ``source`` lacks.
    """
    runs, curves, failures = read_results(source), read_curves(source), read_failures(source)
    lost = {_key(row) for row in _rows(target)} - {_key(row) for row in _rows(source)}
    if lost:
        raise CommandError(
            f"{target} has runs that {source} lacks, {', '.join(map(str, sorted(lost)))}; copy the "
            f"files of {source} there and publish {target} to itself"
        )
    names = [name for name in runs if name not in ("folder", *_kept_files(runs))]
    texts = {name: [_cell(value) for value in runs[name].tolist()] for name in names}
    varying = [name for name in names if len(set(texts[name])) > 1 or name in PLAIN]
    varying = [name for name in varying if any(texts[name])]
    varying.sort(key=lambda name: (PLAIN.index(name) if name in PLAIN else len(PLAIN), name))
    first = dict(zip(runs, next(runs.itertuples(index=False, name=None))))
    shared = {name: first[name] for name in sorted(names) if name not in varying}
    shared = {name: value for name, value in shared.items() if not _is_missing(value)}
    target.mkdir(parents=True, exist_ok=True)
    archive_kept(source, target, list(zip(runs["norm"], runs["seed"])))
    files = {
        CURVES: curves.to_csv(index=False),
        FAILURES: "" if failures.empty else failures.map(_cell).to_csv(index=False),
        SHARED: json.dumps(shared, indent=1, ensure_ascii=False, default=_plain) + "\n",
        RUNS: pd.DataFrame({name: texts[name] for name in varying}).to_csv(index=False),
    }
    for name, text in files.items():
        if text:
            write_text(target / name, text)
    if source.resolve() == target.resolve():
        for result in read_result_files(source):
            path = source / result_name(result["norm"], result["seed"])
            for kind in ENDINGS:
                kept_file(path, kind).unlink(missing_ok=True)
            path.unlink()
        for path in source.glob("failed/*.json"):
            path.unlink()
    return len(runs)


def _kept_files(runs: pd.DataFrame) -> list[str]:
    """The columns with the names of kept files, which the names of the runs determine."""
    return [name for name in runs if name.startswith("kept.") and name.endswith(".file")]


def _plain(value: Any) -> Any:
    """A NumPy scalar as a Python one."""
    return value.item()


def summary(result: Result) -> str:
    """A result in a few lines of text."""
    training, model = result["training"], result["model"]
    return "\n".join(
        (
            f"{result['experiment']} {result['norm']} seed {result['seed']} ({result['split']})",
            *score_lines(result["scores"], find_metric(result["metric"]).digits),
            f"  model      {model['parameters']:,} parameters",
            f"  training   {training['updates']} updates in {training['seconds']} s, "
            f"{training['updates_per_second']} updates/s",
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``publish``."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin publish",
        description="Store the results of an experiment as one table of runs, with their curves "
        "and the files that are kept beside them.",
    )
    parser.add_argument("source", type=Path, metavar="FROM", help="such as work/results/multi30k")
    parser.add_argument(
        "target", type=Path, metavar="TO", help="such as results/multi30k; may be FROM itself"
    )
    args = parser.parse_args(argv)
    print(f"{publish(args.source, args.target)} runs: {args.target / RUNS}")
    return 0


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
    entries = {}
    if translations is not None:
        text = "".join(f"{line}\n" for line in translations)
        entries[TRANSLATIONS] = write_kept(result, TRANSLATIONS, text)
    statistics = {
        "format": FORMAT,
        "record": None if record is None else compact(record_lines(record)),
        "spectra": _spectra(checkpoint),
    }
    text = json.dumps(statistics, separators=(",", ":"), allow_nan=False)
    entries[STATISTICS] = write_kept(result, STATISTICS, f"{text}\n")
    return entries


def write_kept(result: Path, kind: str, text: str) -> dict[str, str]:
    """Write one file beside a result; returns its name and checksum."""
    path = kept_file(result, kind)
    content = text.encode("utf-8")
    with replacing(path) as stream:
        stream.write(gzip.compress(content, mtime=0))
    return {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()}


def kept_file(result: Path, kind: str) -> Path:
    """The file of a kind, one of ``ENDINGS``, beside the JSON file of a result."""
    return result.with_name(result.name.removesuffix(".json") + ENDINGS[kind])


def _spectra(checkpoint: Path) -> list[dict[str, Any]]:
    from norm_plugin.checkpoints.files import load_checkpoint  # they import torch
    from norm_plugin.checkpoints.spectrum import spectra_of

    return [
        {
            "side": spectrum.side,
            "shape": spectrum.shape,
            "values": [_rounded(value, 5) for value in spectrum.values],
        }
        for spectrum in spectra_of(load_checkpoint(checkpoint), checkpoint)
    ]


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
    path = Path(run["folder"]) / f"{run['norm']}-seed{run['seed']}{ENDINGS[kind]}"
    content = _read(path)
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
    return statistics_in(_read(path).decode("utf-8"), path)


def statistics_in(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of the statistics file ``path``."""
    try:
        statistics: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    if statistics.get("format") != FORMAT:
        raise CommandError(
            f"{path} has format {statistics.get('format')}; this version reads format {FORMAT}"
        )
    return statistics


def _read(path: Path) -> bytes:
    """The content of a kept file, from the file itself or from the archive beside it."""
    archive, name = _place_in_archive(path)
    try:
        if archive.exists() and not path.exists():
            return zipfile.ZipFile(archive).read(name)
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise CommandError(
            f"{path} is missing, and a result names it; copy it there, or remove the result and "
            "start its run again, which repeats the score stage alone"
        ) from error
    except (OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        raise CommandError(f"cannot read {path}: {error}") from error


def _place_in_archive(path: Path) -> tuple[Path, str]:
    """The archive beside a kept file, and the name of its content there."""
    for kind, ending in ENDINGS.items():
        if path.name.endswith(ending):
            return path.with_name(f"{kind}.zip"), path.name.removesuffix(".gz")
    return path, path.name


def archive_kept(source: Path, target: Path, runs: Sequence[tuple[str, int]]) -> None:
    """Put the kept files of ``source`` into one archive for each kind in ``target``.

    Args:
        runs: the norm and the seed of each run.
    """
    for kind, ending in ENDINGS.items():
        archive = source / f"{kind}.zip"
        stored = zipfile.ZipFile(archive).namelist() if archive.exists() else []
        contents = {}
        for norm, seed in runs:
            path = source / f"{norm}-seed{seed}{ending}"
            name = _place_in_archive(path)[1]
            if path.exists() or name in stored:
                contents[name] = _read(path)
        if not contents:
            continue
        with (
            replacing(target / archive.name) as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as members,
        ):
            for name, content in contents.items():
                members.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


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
                        column[index] = _rounded(value, digits)
    header = {key: header[key] for key in ("every", "norms")} | {"channels": header["sites"]}
    return {**header, "updates": [line["update"] for line in updates], **columns}


def _rounded(value: Any, digits: int | None) -> Any:
    """A value with so many significant digits; None if it is not finite, as JSON has no NaN."""
    if isinstance(value, list):
        return [_rounded(element, digits) for element in value]
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")
