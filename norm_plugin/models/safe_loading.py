"""What torch's safe loader accepts from a fairseq checkpoint, and its error if it refuses one.

torch 2.6 and later load with ``weights_only=True``, which creates only tensors and plain
containers. fairseq also stores the flags of a command line, a Namespace, and numbers of numpy.
Allowing only these keeps the safe loader on.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import re
from collections.abc import Iterator

import torch

from norm_plugin.models.stored_numbers import allowing_numbers

NAMED = re.compile(r"GLOBAL (\S+)|(?:but got|unrecognized function) (.+)")
"""What the file names or holds, in torch's message and in ours, without ``builtins.``."""


class RefusedContentError(ValueError):
    """Raised for a checkpoint with content that the safe loader refuses; names both."""


def allow_stored_flags() -> None:
    """Allow the Namespace of a command line in torch's safe loader, everywhere in this process."""
    torch.serialization.add_safe_globals([argparse.Namespace])


def what_was_refused(error: pickle.UnpicklingError) -> str:
    """Return the class, function or object that was refused; empty for a damaged file."""
    found = NAMED.search(str(error))
    return (found.group(1) or found.group(2)).strip() if found else ""


@contextlib.contextmanager
def safe_loading(file: object) -> Iterator[None]:
    """Return a context in which the safe loader reads numbers of numpy, and raises
    RefusedContentError for what it refuses in ``file``."""
    try:
        with allowing_numbers():
            yield
    except pickle.UnpicklingError as error:
        if refused := what_was_refused(error):
            raise RefusedContentError(
                f"{file} holds {refused}, which torch's safe loader does not read, because it "
                "could run code. If you trust the file, allow this class or function in your "
                "--user-dir by torch.serialization.add_safe_globals"
            ) from None
        raise
