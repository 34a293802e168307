"""Downloading: with a progress bar, mirrors in order, resumed where it stopped, checked.

A file whose publisher names no checksum gets one on its first download, in `NAME.sha256` beside
it (the form of sha256sum), and is checked against that ever after. Proxies are those of the
environment (http_proxy, https_proxy, no_proxy).
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple, Sequence

from tqdm import tqdm

from archives import check_archive
from steps import PrepError, file_digest, only_one_process, report, write_lines

TIMEOUT_SECONDS = 60
BLOCK_BYTES = 1 << 16


class Source(NamedTuple):
    """A file to download: its name, where it lies (tried in order), its SHA-256 if published."""

    name: str
    urls: tuple[str, ...]
    digest: str | None = None


def download_all(sources: Sequence[Source], folder: Path) -> None:
    """Bring `sources` into `folder`.

    A file that is there already is checked and kept; an unfinished one lies in `NAME.part` and
    is gone on with by the next call. Raises PrepError that says what to do by hand.
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
    """Name: SHA-256 of each source, published or recorded; None where one was never seen."""
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
        raise PrepError(f"{_record_of(path)} holds no SHA-256; remove it to have it made again")
    return recorded.split()[0]


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _check(source: Source, path: Path) -> None:
    """Check a file that is there; one put there by hand, with no checksum yet, gets it now."""
    expected = _expected(source, path)
    if expected is None:
        _check_whole(path)
        _record(path, file_digest(path))
    elif file_digest(path) != expected:
        kind = "published" if source.digest else "first downloaded"
        raise PrepError(
            f"{path} is not the {kind} file (its SHA-256 is not {expected}); remove it to "
            "download it again"
        )


def _check_whole(path: Path) -> None:
    if path.name.endswith((".tgz", ".tgz.part")):
        check_archive(path)


def _record(path: Path, digest: str) -> None:
    new = _record_of(path).with_suffix(".sha256.new")
    write_lines(new, [f"{digest}  {path.name}"])
    os.replace(new, _record_of(path))


def _download(source: Source, path: Path, wanted: list[str]) -> None:
    part = path.with_name(f"{path.name}.part")
    failures = []
    for url in source.urls:
        try:
            _fetch_rest(url, part)
            break
        except (urllib.error.URLError, HTTPException, OSError) as error:
            failures.append(f"{url}: {error}")
    else:
        raise PrepError(
            f"cannot download {'; nor '.join(failures)}; run the same command again to go on, or "
            f"put {', '.join(wanted)} into {path.parent}, or into any folder and pass it as --raw"
        )
    digest = file_digest(part)
    expected = _expected(source, path)
    if expected is not None and digest != expected:
        part.unlink()
        raise PrepError(f"{url} has SHA-256 {digest}, expected {expected}; it was not kept")
    if expected is None:
        try:
            _check_whole(part)
        except PrepError:
            part.unlink()
            raise
        _record(path, digest)
    os.replace(part, path)
    report(f"download {path.name}: {path.stat().st_size:,} bytes")


def _fetch_rest(url: str, part: Path) -> None:
    """Append to `part` what it lacks of `url`; raises OSError where the connection ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if have and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is lacking; the checksum decides
        raise
    with response:
        resumed = response.status == HTTPStatus.PARTIAL_CONTENT
        _write_response(response, part, have if resumed else 0)


def _write_response(response: HTTPResponse, part: Path, start: int) -> None:
    """Write the body of `response` to `part` from byte `start` on."""
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    bar = tqdm(desc=part.stem, total=total, initial=start, unit="B", unit_scale=True, disable=None)
    with bar, open(part, "ab" if start else "wb") as stream:
        while block := response.read(BLOCK_BYTES):
            stream.write(block)
            bar.update(len(block))
        stream.flush()
        os.fsync(stream.fileno())
    size = part.stat().st_size
    if total is not None and size < total:
        raise OSError(f"the connection ended after {size:,} of {total:,} bytes")
