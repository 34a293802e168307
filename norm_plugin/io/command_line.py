"""Helpers of all commands: one-line errors, and how a command ends."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

UNKNOWN = "unrecognized arguments: "  # as argparse prints it
SHOWN = 20  # how many lines of a failed command's output are printed
FAILED, USAGE = 1, 2  # exit statuses
CLOSED = 141  # 128 + SIGPIPE: the exit status that a shell reports after this signal


class CommandError(Exception):
    """Bad input or an impossible request; the message is one line for the user.

    Attributes:
        tail: the last lines of output, which are printed before the message.
        status: the exit status of the command.
    """

    tail: Sequence[str] = ()
    status = FAILED


class UsageError(CommandError):
    """The command line, or a file that it names, is wrong; nothing was started."""

    status = USAGE


class DivergedError(CommandError):
    """Raised if the output of a trained model is not finite."""


def run_command(main: Callable[[], int]) -> None:
    """Exit with the status of ``main()``; print a CommandError as one line, and exit with its."""
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
        sys.exit(error.status)
    except KeyboardInterrupt:
        print("error: interrupted; no file was left incomplete", file=sys.stderr)
        sys.exit(130)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Let a CommandError of the block end the command as a wrong command line does: with 2."""
    try:
        yield
    except CommandError as error:
        error.status = USAGE
        raise


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known one, or all of them."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}."


class Parser(argparse.ArgumentParser):
    """A parser whose help keeps its lines, and whose errors are one line with status 2.

    Args:
        example: commands, shown at the end of the help.
    """

    def __init__(self, *, example: str = "", **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)
        if example:
            lines = [f"  {line.strip()}" for line in example.strip().splitlines()]
            self.epilog = "\n".join([*filter(None, [self.epilog]), "example:", *lines])

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, which for unknown flags names the nearest ones."""
        if message.startswith(UNKNOWN):
            message = self.about_unknown(message.removeprefix(UNKNOWN).split())
        raise UsageError(f"{message}; see {self.prog} --help")

    def about_unknown(self, words: Sequence[str]) -> str:
        """Return the message about words of the command line that the parser does not know."""
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not flags:
            return f"unknown argument {' '.join(words)}"
        hints = [(flag, difflib.get_close_matches(flag, known, n=1, cutoff=0.75)) for flag in flags]
        return "; ".join(
            f"unknown flag {flag}" + (f", did you mean {near[0]}?" if near else "")
            for flag, near in hints
        )


def at_least(least: int) -> Callable[[str], int]:
    """Return the argparse type of an integer that is at least ``least``."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of {least} or more")
        return int(text)

    return number


def existing(text: str) -> Path:
    """Return the path of an existing file or folder: the argparse type of an input."""
    if not os.path.exists(text):
        raise argparse.ArgumentTypeError(f"{text} does not exist")
    return Path(text)


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
