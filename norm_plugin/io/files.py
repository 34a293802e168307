"""Files of commands: written atomically, and read with one-line errors."""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from norm_plugin.io.command_line import CommandError


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that atomically replaces ``path`` when the block ends.

    The content is written to a new file in the same folder, flushed to disk, then renamed. After an
    exception, the new file is removed and ``path`` is unchanged. An existing file keeps its
    permissions. The target of a symlink is replaced, not the link.

    Raises:
        CommandError: the folder is missing or cannot be written, ``path`` is not a regular file,
            or the disk is full.
    """
    check_output(path)
    target = path.resolve()
    # a file name has at most 255 bytes, including the suffix
    stem = os.fsencode(target.name)[:240].decode(errors="ignore")
    temporary = target.with_name(f"{stem}.{secrets.token_hex(4)}.tmp")
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        opener = partial(os.open, mode=0o666 if mode is None else mode)
        with open(temporary, "xb", opener=opener) as stream:  # x follows no link
            if mode is not None:  # which the umask may have narrowed
                os.fchmod(stream.fileno(), mode)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except (OSError, RuntimeError) as error:
        cause = _os_error_behind(error)
        if cause is None:
            raise
        hint = "; free some space and try again" if cause.errno == errno.ENOSPC else ""
        raise CommandError(f"cannot write {path}: {cause.strerror or cause}{hint}") from error
    finally:
        with suppress(OSError):  # such as that of a read-only disk, which is reported above
            temporary.unlink()


def make_folder(folder: Path, option: str) -> None:
    """Create a writable folder; CommandError names the option that changes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"cannot create {folder}: {error.strerror}; choose another {option}"
        ) from error
    if not os.access(folder, os.W_OK):
        raise CommandError(f"{folder} is not writable; choose another {option}")


def check_output(path: Path) -> None:
    """Raise CommandError unless ``path`` is a regular file, or can be created in its folder."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        regular = True
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    if not regular:
        raise CommandError(f"cannot write {path}: it is not a regular file; choose another name")
    if not path.resolve().parent.is_dir():
        raise CommandError(f"the folder of {path} does not exist; create it first")


def _os_error_behind(error: BaseException | None) -> OSError | None:
    # torch.save turns a failed write into a RuntimeError about a position in the archive
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, in UTF-8."""
    with atomic_write(path) as stream:
        stream.write(text.encode("utf-8"))


def write_json(path: Path, content: Any, sort_keys: bool = False) -> None:
    """Write ``content`` to ``path`` atomically, as indented JSON."""
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=sort_keys)
    write_text(path, f"{text}\n")


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """Open a binary file; raise CommandError if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """Return the UTF-8 text of ``path``, with unchanged line ends and no byte order mark.

    Raises:
        CommandError: the file cannot be read or is not UTF-8.
    """
    try:
        with reading(path) as stream:
            return stream.read().removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8: {error}") from error


def read_lines(path: Path) -> list[str]:
    r"""Return the lines of a text, split at ``\n`` only: sentences may contain U+2028."""
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise CommandError if it is unreadable or not JSON."""
    return parse_json(read_text(path), path)


def _refuse_infinity(name: str) -> float:
    if name == "NaN":  # a value that is missing
        return math.nan
    raise ValueError(f"{name} is no number of JSON")


def parse_json(text: str | bytes, path: Path, finite: bool = False) -> Any:
    """Return the value of a JSON text of file ``path``; raise CommandError if it is not JSON.

    Args:
        finite: refuse infinite numbers, which Python reads although JSON has none.
    """
    try:
        return json.loads(text, parse_constant=_refuse_infinity if finite else None)
    except (ValueError, RecursionError) as error:  # not JSON, or nested too deeply
        raise CommandError(f"{path} is not JSON: {error}") from error
