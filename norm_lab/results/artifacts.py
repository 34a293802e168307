"""The artifacts of a run: files that are stored with its result.

    powernorm-seed1.hyp.txt.gz           the translations that sacrebleu scored, one per line
    powernorm-seed1.statistics.json.gz   the record of --norm-record in short, and the singular
                                         values of the embeddings

The result names each file under ``kept``, with the SHA-256 of its uncompressed content, so that a
file of another run is detected. A published folder has one archive per kind. The 1,000 lines of
Multi30k take 23 KB, the 6,750 of IWSLT14 about 170 KB, and statistics about 1 KB per recorded
update of a model with 8 layers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from norm_lab.config.spec import result_name
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write, parse_json, reading

if TYPE_CHECKING:  # it imports torch
    from norm_lab.results.spectrum import Spectrum

TRANSLATIONS, STATISTICS = "translations", "statistics"
ENDINGS = {TRANSLATIONS: ".hyp.txt.gz", STATISTICS: ".statistics.json.gz"}
FORMAT = 1
LEFT_OUT = ("positions", "batch_", "running_")
"""Prefixes of values that only the full record contains; no figure draws them."""
DIGITS = 3
PARTS = ("sites", "layers")
Artifacts = dict[str, dict[str, str]]
"""For each kind, the ``file`` and the ``sha256`` of its content."""


def write_artifacts(
    result: Path,
    translations: Sequence[str] | None,
    record: Path | None,
    spectra: Sequence[Spectrum],
) -> Artifacts:
    """Write the artifacts of a run, and return the entry ``kept`` of its result.

    Args:
        result: the JSON file of the result.
        translations: the translations as sacrebleu scores them; None for other metrics.
        record: the file of ``--norm-record``, if any.
        spectra: those of the embeddings of the evaluated checkpoint.
    """
    entries = {}
    if translations is not None:
        text = "".join(f"{line}\n" for line in translations)
        entries[TRANSLATIONS] = write_artifact(result, TRANSLATIONS, text)
    statistics = {
        "format": FORMAT,
        "record": None if record is None else to_columns(record_lines(record)),
        "spectra": [
            {
                "side": spectrum.side,
                "shape": spectrum.shape,
                "values": [_significant(value, 5) for value in spectrum.values],
            }
            for spectrum in spectra
        ],
    }
    text = json.dumps(statistics, separators=(",", ":"), allow_nan=False)
    entries[STATISTICS] = write_artifact(result, STATISTICS, f"{text}\n")
    return entries


def write_artifact(result: Path, kind: str, text: str) -> dict[str, str]:
    """Write one file to the folder of a result; return its name and checksum."""
    path = artifact_path(result, kind)
    content = text.encode("utf-8")
    with atomic_write(path) as stream:
        stream.write(gzip.compress(content, mtime=0))
    return {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()}


def artifact_path(result: Path, kind: str) -> Path:
    """Return the path of an artifact of a kind in ``ENDINGS``, given the file of its result."""
    return result.with_name(result.name.removesuffix(".json") + ENDINGS[kind])


def read_artifact(run: Mapping[str, Any], kind: str) -> str | None:
    """Return the text of an artifact of a run; None if the run has none.

    Args:
        run: the row of the run in the table of runs.

    Raises:
        CommandError: the file is missing or damaged, or belongs to another run.
    """
    checksum = run.get(f"kept.{kind}.sha256")
    if not isinstance(checksum, str):
        return None
    path = artifact_path(Path(run["folder"], result_name(run["norm"], run["seed"])), kind)
    content = _read(path, kind)
    if hashlib.sha256(content).hexdigest() != checksum and path.exists():
        # a repeated run writes its files before its result, so this is still the published file
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
    """Return the content of an artifact, from its file or from the archive in the same folder."""
    archived = None if path.exists() else _read_archived(path, kind)
    try:
        return gzip.decompress(path.read_bytes()) if archived is None else archived
    except FileNotFoundError as error:
        raise CommandError(
            f"{path} is missing, but a result names it; copy it there, or remove the result and "
            "start its run again, which only repeats the score stage"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise CommandError(f"cannot read {path}: {error}") from error


def _read_archived(path: Path, kind: str) -> bytes | None:
    """Return the content of an artifact from the archive in its folder, or None."""
    archive, name = path.with_name(f"{kind}.zip"), path.name.removesuffix(".gz")
    try:
        status = archive.stat()
        members = _open_archive(archive, (status.st_ino, status.st_mtime_ns))
        return members.read(name) if name in members.namelist() else None
    except FileNotFoundError:
        return None
    except (OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        # RuntimeError: it is encrypted, or has an unknown compression
        raise CommandError(f"cannot read {name} in {archive}: {error}") from error


@lru_cache(maxsize=4)
def _open_archive(archive: Path, version: tuple[int, int]) -> zipfile.ZipFile:
    """Return the archive of many runs, opened once per ``version`` of the file."""
    return zipfile.ZipFile(archive)


def record_lines(path: Path) -> list[dict[str, Any]]:
    """Return the header and the records in a file of ``--norm-record``.

    Raises:
        CommandError: the file is missing, has no records, or has another version.
    """
    from norm_plugin.models.recording import read_records  # imports fairseq

    try:
        with reading(path):
            lines = read_records(path)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if len(lines) < 2:
        raise CommandError(f"{path} has no record yet")
    return lines


def to_columns(lines: Sequence[dict[str, Any]], digits: int | None = DIGITS) -> dict[str, Any]:
    """Return a record of ``--norm-record`` by columns, rounded and without ``LEFT_OUT``.

    Args:
        digits: significant digits; None keeps all digits and all values.

    Returns:
        the header; ``updates``; and for each part, place and name of a value the list of its values
        over the updates, with None for updates without it.
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
    """Return a value rounded to significant digits; None if not finite, as JSON has no NaN."""
    if isinstance(value, list):
        return [_significant(element, digits) for element in value]
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")
