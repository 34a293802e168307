"""Helpers of all commands: errors in one line, and atomic writes."""

from __future__ import annotations

import argparse
import codecs
import errno
import json
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

SHOWN = 20  # the last lines of a failed command that are printed
CLOSED = 141  # 128 + SIGPIPE: the exit status that a shell reports after this signal


class CommandError(Exception):
    """Bad input or an impossible request; the message is one line for the user.

    Attributes:
        tail: the last lines of output, which are shown before the message.
    """

    tail: Sequence[str] = ()


class DivergedError(CommandError):
    """The output of a trained model is not finite."""


def run_command(main: Callable[[], int]) -> None:
    """Exit with the status of ``main()``; a CommandError is one line on stderr and status 1."""
    try:
        if sys.stdout is None:
            raise CommandError("stdout is closed; to see no output, redirect it: >/dev/null")
        with ending_with_the_reader():
            sys.exit(main())
    except CommandError as error:
        for line in error.tail[-SHOWN:]:
            print(f"  | {line}", file=sys.stderr)
        line = " ".join(str(error).split())
        print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("error: interrupted; nothing was left half-written", file=sys.stderr)
        sys.exit(130)


def at_least(least: int) -> Callable[[str], int]:
    """The argparse type of an integer that is at least ``least``."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return number


def hide_warnings() -> None:
    """Hide Python's warnings unless -W or PYTHONWARNINGS asks for them.

    fairseq and hydra use deprecated names of each other.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


@contextmanager
def ending_with_the_reader() -> Iterator[None]:
    """Exit silently with status 141 if the reader of stdout is closed, as in ``... | head``.

    Raises CommandError if stdout cannot be written for another reason, such as a full disk.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # else Python flushes when it exits, and fails with a traceback
    except BrokenPipeError:
        _discard_stdout()
        sys.exit(CLOSED)
    except OSError as error:
        if error.filename is not None:
            raise
        _discard_stdout()
        raise CommandError(f"cannot write the output: {error.strerror}") from error


def _discard_stdout() -> None:
    """Redirect stdout, which Python flushes again at exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that atomically replaces ``path`` when the block ends.

    It is written beside ``path`` under a temporary name, flushed to disk, then renamed. After an
    exception, the temporary file is removed and ``path`` is unchanged. For a symlink, its target is
    replaced. Raises CommandError if the folder is missing or cannot be written, ``path`` is not a
    regular file, or the disk is full.
    """
    check_output(path)
    target = path.resolve()
    # a file name has at most 255 bytes, including the suffix
    stem = os.fsencode(target.name)[:240].decode(errors="ignore")
    temporary = target.with_name(f"{stem}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
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
        temporary.unlink(missing_ok=True)


def check_output(path: Path) -> None:
    """Raise CommandError unless ``path`` is a regular file, or can become one in its folder."""
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
    """Atomically replace ``path`` by ``text`` in UTF-8."""
    with replacing(path) as stream:
        stream.write(text.encode("utf-8"))


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """Open a binary file; CommandError if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """The UTF-8 text of ``path``, with unchanged line ends; CommandError if it cannot be read.

    A byte order mark at its start is no part of the text.
    """
    try:
        with reading(path) as stream:
            return stream.read().removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8: {error}") from error


def read_lines(path: Path) -> list[str]:
    r"""The lines of a text, split at ``\n`` only, since sentences may contain U+2028 and others."""
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def read_json(path: Path) -> Any:
    """The content of a JSON file; CommandError if it cannot be read or is not JSON."""
    return parse_json(read_text(path), path)


def parse_json(text: str | bytes, path: Path) -> Any:
    """The value in a JSON text of the file ``path``; CommandError if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, or nested too deeply
        raise CommandError(f"{path} is not JSON: {error}") from error
