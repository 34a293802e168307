"""What torch's safe loader takes of a checkpoint of fairseq, and what it says where it refuses one.

torch 2.6 and later load with ``weights_only=True``, which makes tensors and plain containers only.
fairseq also stores the flags of a command line, a Namespace, and numbers of numpy. Allowing just
these keeps the safe loader on.
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
"""In torch's message, and in ours: what the file names or holds. ``builtins.`` is left out."""


class RefusedContentError(ValueError):
    """A checkpoint holds what the safe loader does not make; the message names it and the file."""


def allow_stored_flags() -> None:
    """Let torch's safe loader read the flags of a command line, everywhere in this process."""
    torch.serialization.add_safe_globals([argparse.Namespace])


def what_was_refused(error: pickle.UnpicklingError) -> str:
    """The class, function or object that the safe loader has refused; empty for a damaged file."""
    found = NAMED.search(str(error))
    return (found.group(1) or found.group(2)).strip() if found else ""


@contextlib.contextmanager
def safe_loading(file: object) -> Iterator[None]:
    """Within it, the safe loader reads numbers of numpy, and what it refuses of ``file`` raises
    RefusedContentError."""
    try:
        with allowing_numbers():
            yield
    except pickle.UnpicklingError as error:
        if refused := what_was_refused(error):
            raise RefusedContentError(
                f"{file} holds {refused}, which torch's safe loader does not read: it could run "
                "code. If you trust the file, let your --user-dir allow this class or function by "
                "torch.serialization.add_safe_globals"
            ) from None
        raise
