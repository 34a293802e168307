"""Downloading: with a progress bar, resumed where it stopped, checked against a checksum."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from tqdm import tqdm

from steps import PrepError, file_digest, only_one_process, report

TIMEOUT_SECONDS = 60
BLOCK_BYTES = 1 << 16


def download_all(base_url: str, digests: dict[str, str], folder: Path) -> None:
    """Bring the files named in `digests` (name: SHA-256) from `base_url` into `folder`.

    A file that is there already is checked and kept; an unfinished one lies in `NAME.part` and
    is gone on with by the next call. Raises PrepError that says what to do by hand.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with only_one_process(folder / ".lock", f"downloading to {folder}"):
        for name, digest in digests.items():
            if not (folder / name).exists():
                _download(f"{base_url}/{name}", folder / name, digest, list(digests))
            elif file_digest(folder / name) != digest:
                raise PrepError(
                    f"{folder / name} is not the published file (its SHA-256 is not "
                    f"{digest}); remove it to download it again"
                )


def _download(url: str, path: Path, digest: str, wanted: list[str]) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        _fetch_rest(url, part)
    except (urllib.error.URLError, HTTPException, OSError) as error:
        raise PrepError(
            f"cannot download {url}: {error}; run the same command again to go on, or put "
            f"{', '.join(wanted)} into {path.parent}, or into any folder and pass it as --raw"
        ) from error
    found = file_digest(part)
    if found != digest:
        part.unlink()
        raise PrepError(f"{url} has SHA-256 {found}, expected {digest}; it was not kept")
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
