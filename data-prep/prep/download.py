"""Download the raw files: try mirrors in order, resume, and check.

Next to an unfinished `NAME.part`, `NAME.part.version` stores its address and its version, which is
the ETag or Last-Modified of the server. The rest is requested with `If-Range`, so that the server
sends a changed file from its start (RFC 9110, section 13.1.5).

If the publisher gives no checksum, the first download records one in `NAME.sha256` in the same
folder (in the form of sha256sum), and later downloads are checked against it. Proxies are taken
from the environment (http_proxy, https_proxy, no_proxy).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_text, write_text
from prep.files import (
    ARCHIVES,
    check_count,
    file_digest,
    lines_of,
    locked,
    read_archive,
    report,
)

TIMEOUT_SECONDS = 60


class Source(NamedTuple):
    """A file to download: its name, and its addresses in order of preference.

    The publisher's checksum identifies it. If there is none, ``lines`` is the published number of
    lines of a plain text: a server may answer with a page of its own, and an archive shows that.
    """

    name: str
    urls: tuple[str, ...]
    digest: str | None = None
    lines: int | None = None


def beside(path: Path, suffix: str) -> Path:
    """Return the path with a suffix after its name."""
    return path.with_name(path.name + suffix)


def download_all(sources: Sequence[Source], folder: Path) -> None:
    """Download `sources` into `folder`.

    An existing file is checked and kept. An unfinished download is kept as `NAME.part` and resumed
    by the next call. The message of a CommandError says how to download the files manually.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", f"downloading to {folder}"):
        for source in sources:
            path = folder / source.name
            if not path.exists():
                _download(source, path)
                continue
            try:
                _check(source, path, path)
            except CommandError as error:
                raise CommandError(
                    f"{error}; remove it to download it again, or pass its folder as --raw to use "
                    "it unchanged"
                ) from None


def known_digests(sources: Sequence[Source], folder: Path) -> dict[str, str] | None:
    """Return the SHA-256 of each source by name, published or recorded; None if any is unknown."""
    digests = {source.name: _expected(source, folder / source.name) for source in sources}
    known = {name: digest for name, digest in digests.items() if digest is not None}
    return known if len(known) == len(digests) else None


def _expected(source: Source, path: Path) -> str | None:
    record = beside(path, ".sha256")
    if source.digest is not None or not record.exists():
        return source.digest
    if not (found := re.match("[0-9a-f]{64}(?= )", read_text(record))):
        raise CommandError(
            f"{record} has no SHA-256; remove it and {path.name}, and download again"
        )
    return found[0]


def _check(source: Source, path: Path, content: Path) -> None:
    """Check the content of a file; if its checksum is unknown, record it.

    Raises:
        CommandError: the checksum or the number of lines is wrong, or the archive is damaged.
    """
    expected, digest = _expected(source, path), file_digest(content)
    if expected is None:
        if path.name.endswith(ARCHIVES):
            read_archive(content)
        if source.lines is not None:
            check_count(str(path), sum(1 for _ in lines_of(content)), source.lines)
        write_text(beside(path, ".sha256"), f"{digest}  {path.name}\n")
    elif digest != expected:
        kind = "published" if source.digest else "first downloaded"
        raise CommandError(
            f"{path} is not the {kind} file: its SHA-256 is {digest}, not {expected}"
        )


def _download(source: Source, path: Path) -> None:
    part, failures = beside(path, ".part"), []
    for url in source.urls:
        try:
            fetch_rest(url, part)
            _check(source, path, part)
        except CommandError as error:  # another address may have the right file
            _remove(part)
            failures.append(f"{url}: {error}")
        except (HTTPException, OSError) as error:  # URLError is an OSError
            failures.append(f"{url}: {error}")
        else:
            os.replace(part, path)
            _remove(part)
            report(f"download {path.name}: {path.stat().st_size:,} bytes")
            return
    tried = "; nor ".join(failures) or f"{path.name}, which has no address"
    raise CommandError(
        f"cannot download {tried}; run the same command again to resume, or "
        f"download it manually, and pass the folder of all raw files as --raw"
    )


def _remove(part: Path) -> None:
    part.unlink(missing_ok=True)
    beside(part, ".version").unlink(missing_ok=True)


def fetch_rest(url: str, part: Path) -> None:
    """Download the file at `url` to `part`, or the rest of it.

    Raises:
        OSError, HTTPException: the connection failed or ended early. The bytes received so far
            are kept for the next call.
    """
    start, headers, record = 0, {}, beside(part, ".version")
    if part.exists() and record.exists():
        address, _, version = read_text(record).strip().partition("\n")
        if (address, bool(version)) == (url, True) and part.stat().st_size > 1:
            start = part.stat().st_size - 1  # so that a range remains even if the file is complete
            headers = {"Range": f"bytes={start}-", "If-Range": version}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            start = 0
            _remove(part)
            if version := response.headers.get("ETag") or response.headers.get("Last-Modified"):
                write_text(record, f"{url}\n{version}\n")
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            _remove(part)
            raise OSError("the server sent another part than was requested")
        if response.length is None and not response.chunked:
            raise OSError("the server does not say how long the file is")
        total = None if response.length is None else start + response.length
        bar = tqdm.wrapattr(
            response,
            "read",
            total=total,
            initial=start,
            desc=part.stem,
            mininterval=0.1 if sys.stderr.isatty() else 30,
        )
        with bar as body, open(part, "r+b" if start else "wb") as stream:
            stream.seek(start)
            shutil.copyfileobj(body, stream)
            size = stream.tell()
    if total not in (None, size):
        raise OSError(f"the connection ended after {size:,} of {total:,} bytes")
