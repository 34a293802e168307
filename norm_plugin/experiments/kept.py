"""What is kept beside a result, so that a report needs nothing but the folder of results.

    powernorm-seed1.hyp.txt.gz           the translations that sacrebleu scored, a line a sentence
    powernorm-seed1.statistics.json.gz   the record of --norm-record in short, and the singular
                                         values of the embeddings

The result names each file under ``kept``, with the SHA-256 of its uncompressed content, so that a
file of another run is noticed. A published folder has them uncompressed in an archive for each
kind, ``translations.zip`` and ``statistics.zip``. 1,000 lines of Multi30k take 23 KB and the 6,750
of IWSLT14 about 170 KB. The statistics of a run take about 1 KB for each recorded update of a model
with 8 layers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError, reading, replacing

TRANSLATIONS, STATISTICS = "translations", "statistics"
ENDINGS = {TRANSLATIONS: ".hyp.txt.gz", STATISTICS: ".statistics.json.gz"}
FORMAT = 1
LEFT_OUT = ("positions", "batch_", "running_")
"""How the values begin that only the full record has; no figure draws them."""
DIGITS = 3
PARTS = ("sites", "layers")
Kept = dict[str, dict[str, str]]
"""What a result says of each file: its name and the checksum of its content."""


def keep_files(
    result: Path, translations: Sequence[str] | None, record: Path | None, checkpoint: Path
) -> Kept:
    """Write what is kept beside a result, and return what the result says of it.

    Args:
        result: its JSON file.
        translations: as sacrebleu scored them; None for a run that was scored otherwise.
        record: the file of ``--norm-record``; None where nothing was recorded.
        checkpoint: whose embeddings are looked at: the one that was scored.
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
    """Write one file beside a result; what the result says of it."""
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
    """The text of a kept file of a run; None for a run that names none.

    Args:
        run: its row in the table of runs.

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
    """The statistics in a file of that kind: ``record``, None without one, and ``spectra``.

    Raises:
        CommandError: it cannot be read, or is of another version.
    """
    return statistics_in(_read(path).decode("utf-8"), path)


def statistics_in(text: str, path: Path) -> dict[str, Any]:
    """The statistics in the text of the file ``path``."""
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
    """The content of a kept file, from itself or from the archive of its published folder."""
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
    """Put the kept files of ``runs`` in ``source`` into an archive for each kind in ``target``.

    Args:
        runs: norm and seed of each.
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
        CommandError: no such file, no records in it, or of another version.
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
    """A record of ``--norm-record`` by columns, with three digits and without ``LEFT_OUT``.

    Args:
        digits: None: all, and nothing is left out.

    Returns:
        the header; ``updates``; and by part, place and name of a value the list of its values, one
        an update, None where a place has none.
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
    """None also for a value that is not finite, for which JSON has no word."""
    if isinstance(value, list):
        return [_rounded(element, digits) for element in value]
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")
