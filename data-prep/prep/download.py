"""Downloads the raw files: tries mirrors in order, resumes, and checks.

Beside an unfinished `NAME.part`, `NAME.part.version` stores its address and its version: the ETag
or the Last-Modified of the server. The rest is requested with `If-Range`, so a file that has
changed is sent from its start (RFC 9110, section 13.1.5).

If the publisher names no checksum, the first download records one in `NAME.sha256` beside the file
(in the form of sha256sum), and later downloads are checked against it. Proxies are taken from the
environment (http_proxy, https_proxy, no_proxy).
"""

from __future__ import annotations

import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from norm_plugin.commands.command_line import CommandError, write_text
from prep.files import ARCHIVES, file_digest, locked, read_archive, report

TIMEOUT_SECONDS = 60
BLOCK_BYTES = 1 << 16


class Source(NamedTuple):
    """A file to download: its name, its addresses in order of preference, its SHA-256 if known."""

    name: str
    urls: tuple[str, ...]
    digest: str | None = None


def download_all(sources: Sequence[Source], folder: Path) -> None:
    """Download `sources` into `folder`.

    A file that is there already is checked and kept. An unfinished download is kept as `NAME.part`
    and resumed by the next call. Raises CommandError, which says what to do by hand.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", f"downloading to {folder}"):
        for source in sources:
            path = folder / source.name
            if path.exists():
                _check(source, path)
            else:
                _download(source, path, [each.name for each in sources])


def known_digests(sources: Sequence[Source], folder: Path) -> dict[str, str] | None:
    """Name to SHA-256 of each source, published or recorded; None if one is not known yet."""
    digests = {source.name: _expected(source, folder / source.name) for source in sources}
    known = {name: digest for name, digest in digests.items() if digest is not None}
    return known if len(known) == len(digests) else None


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _expected(source: Source, path: Path) -> str | None:
    if source.digest is not None or not _record_of(path).exists():
        return source.digest
    recorded = _record_of(path).read_text(encoding="utf-8")
    if not re.match(r"[0-9a-f]{64} ", recorded):
        raise CommandError(
            f"{_record_of(path)} holds no SHA-256; remove it, and the next download writes it again"
        )
    return recorded.split()[0]


def _check(source: Source, path: Path) -> None:
    """Check a file that is there; record its checksum if none is known yet."""
    expected, digest = _expected(source, path), file_digest(path)
    if expected is None:
        if path.name.endswith(ARCHIVES):
            read_archive(path)
        write_text(_record_of(path), f"{digest}  {path.name}\n")
    elif digest != expected:
        kind = "published" if source.digest else "first downloaded"
        raise CommandError(
            f"{path} is not the {kind} file (its SHA-256 is not {expected}); remove it to "
            "download it again, or pass its folder as --raw to use it as it is"
        )


def _download(source: Source, path: Path, wanted: list[str]) -> None:
    part = path.with_name(f"{path.name}.part")
    expected = _expected(source, path)
    failures = []
    for url in source.urls:
        try:
            fetch_rest(url, part)
            digest = _check_part(part, expected)
            break
        except CommandError as error:  # another address may have the right file
            _remove(part)
            failures.append(f"{url}: {error}")
        except (HTTPException, OSError) as error:  # URLError is an OSError
            failures.append(f"{url}: {error}")
    else:
        raise CommandError(
            f"cannot download {'; nor '.join(failures)}; run the same command again to resume, or "
            f"put {', '.join(wanted)} into {path.parent}, or into a folder that you pass as --raw"
        )
    if expected is None:
        write_text(_record_of(path), f"{digest}  {path.name}\n")
    os.replace(part, path)
    _remove(part)
    report(f"download {path.name}: {path.stat().st_size:,} bytes")


def _check_part(part: Path, expected: str | None) -> str:
    """The SHA-256 of a finished download; raises CommandError if it is not the expected file."""
    digest = file_digest(part)
    if expected is None and part.stem.endswith(ARCHIVES):
        read_archive(part)
    if expected not in (None, digest):
        raise CommandError(
            f"it has SHA-256 {digest}, expected {expected}; it was not kept (if the publisher has "
            "changed it, download it by hand and pass its folder as --raw)"
        )
    return digest


def _version_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _remove(part: Path) -> None:
    part.unlink(missing_ok=True)
    _version_of(part).unlink(missing_ok=True)


def fetch_rest(url: str, part: Path) -> None:
    """Download the file at `url` to `part`, or the rest of it.

    Raises OSError or HTTPException if the connection fails or ends early. The bytes received so
    far stay for the next call.
    """
    if part.exists() and _version_of(part).exists():
        address, known = _version_of(part).read_text(encoding="utf-8").split("\n")[:2]
        # Of a whole file too, one byte is left to ask for.
        start = part.stat().st_size - 1
        if address == url and start > 0 and _fetch_from(url, part, start, known):
            return
    _remove(part)
    with _open(url, {}) as response:
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if version:
            write_text(_version_of(part), f"{url}\n{version}\n")
        _write_body(response, part, 0)


def _fetch_from(url: str, part: Path, start: int, version: str) -> bool:
    """Download the bytes from `start` on; False if the server has not sent these."""
    try:
        response = _open(url, {"Range": f"bytes={start}-", "If-Range": version})
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return False
    with response:
        sent = response.headers.get("Content-Range", "")
        same = response.status == HTTPStatus.PARTIAL_CONTENT and sent.startswith(f"bytes {start}-")
        if same:
            _write_body(response, part, start)
    return same


def _open(url: str, headers: dict[str, str]) -> HTTPResponse:
    request = urllib.request.Request(url, headers=headers)
    response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    return response


def _write_body(response: HTTPResponse, part: Path, start: int) -> None:
    """Write the body of a response to `part`, from byte `start` on."""
    if response.length is None and not response.chunked:
        raise OSError("the server does not say how long the file is")
    total = None if response.length is None else start + response.length
    bar = tqdm(
        desc=part.stem,
        total=total,
        initial=start,
        unit="B",
        unit_scale=True,
        mininterval=0.1 if sys.stderr.isatty() else 30,
    )
    with bar, open(part, "r+b" if start else "wb") as stream:
        stream.seek(start)
        stream.truncate()
        while block := response.read(BLOCK_BYTES):
            stream.write(block)
            bar.update(len(block))
        size = stream.tell()
        stream.flush()
        os.fsync(stream.fileno())
    if total not in (None, size):
        raise OSError(f"the connection ended after {size:,} of {total:,} bytes")
