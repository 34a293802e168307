"""The command line that all corpora share, and its stages: fetch, prepare, binarize."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Callable

from steps import PrepError

STAGES = ("fetch", "prepare", "binarize")


def positive_int(text: str) -> int:
    """argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every corpus has."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the prepared corpus"
    )
    parser.add_argument(
        "--only",
        choices=STAGES,
        help="run this stage alone: fetch brings the raw files, prepare makes the text, "
        "binarize makes bin/ (default: all three; what is done already is left out)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="make it again where DIR holds one already"
    )
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one a core); the result does not depend on it",
    )


def run_command(main: Callable[[], None]) -> None:
    """Run a command; a failure that the user can mend is one line on stderr and exit status 1."""
    try:
        main()
    except (PrepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("error: interrupted; nothing is left half-written", file=sys.stderr)
        sys.exit(130)
