"""What the user of a command is told: a line of progress, or the one line of an error."""

from __future__ import annotations

import sys

from tqdm import tqdm


class PrepError(Exception):
    """Bad input or settings; the message is the one line that the user reads."""


def report(message: str) -> None:
    """Print one line of progress to stderr, above a running progress bar."""
    tqdm.write(message, file=sys.stderr)
