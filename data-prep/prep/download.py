"""Download the raw files: try mirrors in order, resume, and check.

Proxies are taken from the environment (http_proxy, https_proxy, no_proxy).
"""

from __future__ import annotations

import os
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


def _check(source: Source, path: Path, content: Path) -> None:
    """Check the content of a file that is or will be at a path.

    Raises:
        CommandError: the checksum or the number of lines is wrong, or the archive is damaged.
    """
    if source.digest is not None:
        if (digest := file_digest(content)) != source.digest:
            raise CommandError(
                f"{path} is not the published file: its SHA-256 is {digest}, not {source.digest}"
            )
    elif path.name.endswith(ARCHIVES):
        read_archive(content)
    elif source.lines is not None:
        check_count(str(path), sum(1 for _ in lines_of(content)), source.lines)


def _download(source: Source, path: Path) -> None:
    part, failures = path.with_name(f"{path.name}.part"), []
    for url in source.urls:
        if source.digest is None and not path.name.endswith(ARCHIVES):
            # nothing would show that what was received so far is of another file
            part.unlink(missing_ok=True)
        try:
            fetch_rest(url, part)
            _check(source, path, part)
        except CommandError as error:  # another address may have the right file
            part.unlink()
            failures.append(f"{url}: {error}")
        except (HTTPException, OSError) as error:  # URLError is an OSError
            if getattr(error, "code", 0) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()  # it is of a longer file
            failures.append(f"{url}: {error}")
        else:
            os.replace(part, path)
            report(f"download {path.name}: {path.stat().st_size:,} bytes")
            return
    raise CommandError(
        f"cannot download {'; nor '.join(failures)}; run the same command again to resume, or "
        f"download it manually, and pass the folder of all raw files as --raw"
    )


def fetch_rest(url: str, part: Path) -> None:
    """Download the file at `url` to `part`, or what `part` lacks of it.

    Raises:
        OSError, HTTPException: the connection failed or ended early. The bytes received so far
            are kept for the next call.
    """
    start = max(0, part.stat().st_size - 1) if part.exists() else 0  # one byte remains to be sent
    headers = {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            start = 0
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
