"""Downloads the raw files: tries mirrors in order, resumes (`transfer`), and checks.

If the publisher names no checksum, the first download records one in `NAME.sha256` beside the file
(in the form of sha256sum), and later downloads are checked against it. Proxies are taken from the
environment (http_proxy, https_proxy, no_proxy).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from prep.archives import ARCHIVES, check_archive
from prep.locks import only_one_process
from prep.messages import PrepError, report
from prep.text_files import file_digest, write_lines
from prep.transfer import fetch_rest, remove_part
from prep.zips import ZIPS, check_zip


class Source(NamedTuple):
    """A file to download: its name, its addresses in order of preference, its SHA-256 if known."""

    name: str
    urls: tuple[str, ...]
    digest: str | None = None


def download_all(sources: Sequence[Source], folder: Path) -> None:
    """Download `sources` into `folder`.

    A file that is there already is checked and kept. An unfinished download is kept as `NAME.part`
    and resumed by the next call. Raises PrepError, which says what to do by hand.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with only_one_process(folder / ".lock", f"downloading to {folder}"):
        for source in sources:
            path = folder / source.name
            if path.exists():
                _check(source, path)
            else:
                _download(source, path, [each.name for each in sources])


def known_digests(sources: Sequence[Source], folder: Path) -> dict[str, str] | None:
    """Name to SHA-256 of each source, published or recorded; None if one is not known yet."""
    digests = {source.name: _expected(source, folder / source.name) for source in sources}
    if None in digests.values():
        return None
    return {name: digest for name, digest in digests.items() if digest is not None}


def _expected(source: Source, path: Path) -> str | None:
    if source.digest is not None:
        return source.digest
    try:
        recorded = _record_of(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    if not re.match(r"[0-9a-f]{64} ", recorded):
        raise PrepError(
            f"{_record_of(path)} holds no SHA-256; remove it, and the next download writes it again"
        )
    return recorded.split()[0]


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _check(source: Source, path: Path) -> None:
    """Check a file that is there; record its checksum if none is known yet."""
    expected = _expected(source, path)
    if expected is None:
        _check_whole(path)
        _record(path, file_digest(path))
    elif file_digest(path) != expected:
        kind = "published" if source.digest else "first downloaded"
        raise PrepError(
            f"{path} is not the {kind} file (its SHA-256 is not {expected}); remove it to "
            "download it again, or pass its folder as --raw to use it as it is"
        )


def _check_whole(path: Path) -> None:
    name = path.name.removesuffix(".part")
    if name.endswith(ARCHIVES):
        check_archive(path)
    elif name.endswith(ZIPS):
        check_zip(path)


def _record(path: Path, digest: str) -> None:
    new = _record_of(path).with_suffix(".sha256.new")
    write_lines(new, [f"{digest}  {path.name}"])
    os.replace(new, _record_of(path))


def _download(source: Source, path: Path, wanted: list[str]) -> None:
    part = path.with_name(f"{path.name}.part")
    expected = _expected(source, path)
    failures = []
    for url in source.urls:
        try:
            fetch_rest(url, part)
            digest = _check_part(part, expected)
            break
        except PrepError as error:  # another address may have the right file
            remove_part(part)
            failures.append(f"{url}: {error}")
        except (HTTPException, OSError) as error:  # URLError is an OSError
            failures.append(f"{url}: {error}")
    else:
        raise PrepError(
            f"cannot download {'; nor '.join(failures)}; run the same command again to resume, or "
            f"put {', '.join(wanted)} into {path.parent}, or into a folder that you pass as --raw"
        )
    if expected is None:
        _record(path, digest)
    os.replace(part, path)
    remove_part(part)
    report(f"download {path.name}: {path.stat().st_size:,} bytes")


def _check_part(part: Path, expected: str | None) -> str:
    """The SHA-256 of a finished download; raises PrepError if it is not the expected file."""
    digest = file_digest(part)
    if expected is None:
        _check_whole(part)
    elif digest != expected:
        raise PrepError(
            f"it has SHA-256 {digest}, expected {expected}; it was not kept (if the publisher has "
            "changed it, download it by hand and pass its folder as --raw)"
        )
    return digest
