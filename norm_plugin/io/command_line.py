"""Helpers of all commands: errors in one line, and how a command ends."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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
        with exit_on_broken_pipe():
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
def exit_on_broken_pipe() -> Iterator[None]:
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
