"""Downloads one file over HTTP, and resumes only if the result is certain to be one version of it.

Beside the unfinished `NAME.part`, `NAME.part.json` stores the address and the validator: a strong
ETag, or a Last-Modified that is old enough to serve as one (RFC 9110, section 8.8). The rest is
requested with `If-Range`, together with the last bytes of the part, which must be the same again.
If the file has changed, or the server sends no validator or another range, the download starts
over.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from prep.messages import report

TIMEOUT_SECONDS = 60
BLOCK_BYTES = 1 << 16
OVERLAP_BYTES = 1 << 16  # of the part, to be sent again and compared
PACE_SECONDS = 30.0
SLOWEST = 1024  # bytes a second, over PACE_SECONDS
OLD_ENOUGH_SECONDS = 60  # a younger file may change again within the same second

clock = time.monotonic


class CannotResumeError(Exception):
    """What the server sends does not continue the part."""


def fetch_rest(url: str, part: Path) -> None:
    """Download the file at `url` to `part`, or the rest of it.

    Raises OSError or HTTPException if the connection fails, ends early or is far too slow. The
    bytes received so far stay for the next call.
    """
    if part.exists():
        try:
            _resume(url, part)
            return
        except CannotResumeError as reason:
            report(f"download {part.stem} from the start: {reason}")
    with _open(url, {}) as response:
        _remember(url, response, part)
        with open(part, "wb") as stream:
            total = _length(response)
            _write_body(_Body(response, part.stem, 0, total), stream, 0)


def remove_part(part: Path) -> None:
    """Remove an unfinished download and its stored validator."""
    part.unlink(missing_ok=True)
    _memory_of(part).unlink(missing_ok=True)


def _open(url: str, headers: dict[str, str]) -> HTTPResponse:
    request = urllib.request.Request(url, headers=headers)
    response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    return response


# ---- resuming -------------------------------------------------------------------------------


def _resume(url: str, part: Path) -> None:
    memory = _recall(part)
    if memory.get("url") != url:
        raise CannotResumeError("no validator is stored for its address")
    have, validator = part.stat().st_size, memory["validator"]
    start = max(0, have - OVERLAP_BYTES)
    try:
        response = _open(url, {"Range": f"bytes={start}-", "If-Range": validator})
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise CannotResumeError("the file on the server is not longer than the part") from None
        raise
    with response, open(part, "r+b") as stream:
        total = _check_range(response, start, have, memory)
        stream.seek(start)
        body = _Body(response, part.stem, start, total)
        _compare(body, stream, have - start)
        _write_body(body, stream, have)


def _compare(body: _Body, stream: IO[bytes], count: int) -> None:
    """Read exactly `count` bytes of `body`, which must equal those of `stream`."""
    while count > 0:
        block = body.read(count)
        if not block or stream.read(len(block)) != block:
            raise CannotResumeError("the server sends other bytes than before")
        count -= len(block)


def _check_range(response: HTTPResponse, start: int, have: int, memory: dict[str, Any]) -> int:
    """The size of the file; raises CannotResumeError unless it is a 206 of the same version."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        raise CannotResumeError("the file has changed, or the server does not send parts")
    given = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", given.strip())
    first, last, total = map(int, found.groups()) if found else (-1, -1, -1)
    length = response.headers.get("Content-Length", str(last + 1 - first))
    if (first, last, str(last + 1 - first)) != (start, total - 1, length) or have > total:
        raise CannotResumeError(
            f"asked for bytes {start}-, but the server sends {given or 'no range'}"
        )
    validator = _validator(response)
    if memory.get("total") not in (None, total) or validator not in (None, memory["validator"]):
        raise CannotResumeError("the file has changed")
    return total


def _memory_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remember(url: str, response: HTTPResponse, part: Path) -> None:
    """Store which version `part` belongs to, before its first byte; nothing without a validator."""
    remove_part(part)
    validator = _validator(response)
    if validator is not None:
        content = {"url": url, "validator": validator, "total": _length(response)}
        _memory_of(part).write_text(json.dumps(content) + "\n", encoding="utf-8")


def _recall(part: Path) -> dict[str, Any]:
    try:
        memory = json.loads(_memory_of(part).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    known = isinstance(memory, dict) and isinstance(memory.get("validator"), str)
    return memory if known else {}


def _validator(response: HTTPResponse) -> str | None:
    """The validator that identifies this version of the file; None if there is none."""
    tag: str | None = response.headers.get("ETag")
    if tag is not None:
        return tag if re.fullmatch(r'"[\x21\x23-\x7e]*"', tag) else None  # W/"...": weak
    modified: str | None = response.headers.get("Last-Modified")
    try:
        changed = parsedate_to_datetime(modified or "")
        age = parsedate_to_datetime(response.headers.get("Date", "")) - changed
    except (TypeError, ValueError):  # absent or no date; TypeError: only one has a time zone
        return None
    old = age.total_seconds() >= OLD_ENOUGH_SECONDS
    return modified if old and str(modified).isprintable() else None


# ---- the bytes ------------------------------------------------------------------------------


def _length(response: HTTPResponse) -> int | None:
    """The size of the file; None if it comes in chunks, which mark their end."""
    if response.length is None and not response.chunked:
        raise OSError("the server does not say how long the file is")
    return response.length


class _Body:
    """The body of a response, from byte `size` of the file; raises OSError if too slow."""

    def __init__(self, response: HTTPResponse, name: str, size: int, total: int | None) -> None:
        self._response, self.name, self.size, self.total = response, name, size, total
        self._since, self._before = clock(), size

    def read(self, most: int) -> bytes:
        """The next bytes, as soon as some arrive; none at the end."""
        block = self._response.read1(min(most, BLOCK_BYTES))  # read() would wait for all
        self.size += len(block)
        seconds, came = clock() - self._since, self.size - self._before
        if block and seconds >= PACE_SECONDS:
            of = "" if self.total is None else f" of {self.total:,}"
            if came < SLOWEST * seconds:
                raise OSError(
                    f"only {came:,} bytes in {seconds:.0f} s, and {self.size:,}{of} so far; "
                    f"below {SLOWEST:,} a second the connection is given up"
                )
            rate = came / seconds / 1024
            report(f"download {self.name}: {self.size:,}{of} bytes, {rate:,.0f} KiB/s")
            self._since, self._before = clock(), self.size
        return block


def _write_body(body: _Body, stream: IO[bytes], start: int) -> None:
    """Append `body` to `stream`, which holds `start` bytes of the file."""
    bar = tqdm(
        desc=body.name, total=body.total, initial=start, unit="B", unit_scale=True, disable=None
    )
    with bar:
        while block := body.read(BLOCK_BYTES):
            stream.write(block)
            bar.update(len(block))
        stream.flush()
        os.fsync(stream.fileno())
    if body.total is not None and body.size != body.total:
        raise OSError(f"the connection ended after {body.size:,} of {body.total:,} bytes")
