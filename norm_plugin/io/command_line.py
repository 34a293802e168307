"""Helpers of all commands: one-line errors, and how a command ends."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

SHOWN = 20  # how many lines of a failed command's output are printed
CLOSED = 141  # 128 + SIGPIPE: the exit status that a shell reports after this signal


class CommandError(Exception):
    """Bad input or an impossible request; the message is one line for the user.

    Attributes:
        tail: the last lines of output, which are printed before the message.
    """

    tail: Sequence[str] = ()


class DivergedError(CommandError):
    """Raised if the output of a trained model is not finite."""


def run_command(main: Callable[[], int]) -> None:
    """Exit with the status of ``main()``; print a CommandError as one line and exit with 1."""
    try:
        if sys.stdout is None:
            raise CommandError("stdout is closed; to discard the output, redirect it: >/dev/null")
        with exit_on_broken_pipe():
            sys.exit(main())
    except CommandError as error:
        for line in error.tail[-SHOWN:]:
            print(f"  | {line}", file=sys.stderr)
        line = " ".join(str(error).split())
        print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("error: interrupted; no file was left incomplete", file=sys.stderr)
        sys.exit(130)


def at_least(least: int) -> Callable[[str], int]:
    """Return the argparse type of an integer that is at least ``least``."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of {least} or more")
        return int(text)

    return number


def hide_warnings() -> None:
    """Hide Python's warnings unless -W or PYTHONWARNINGS requests them.

    fairseq and hydra use deprecated names of each other.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


@contextmanager
def exit_on_broken_pipe() -> Iterator[None]:
    """Exit silently with status 141 if the reader of stdout is closed, as in ``... | head``.

    Raises:
        CommandError: stdout cannot be written for another reason, such as a full disk.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # otherwise Python flushes at exit, and fails with a traceback
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
