"""A pre-trained model that a run fine-tunes: a checkpoint, and the dictionary beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from norm_plugin.commands.command_line import CommandError


@dataclass(frozen=True)
class Pretrained:
    """What identifies a pre-trained model is its content, not where it lies.

    Attributes:
        digest: the first digits of the SHA-256 of the checkpoint.
        dictionary_digest: those of its dictionary.
    """

    checkpoint: Path
    dictionary: Path
    digest: str
    dictionary_digest: str


def find_pretrained(checkpoint: Path) -> Pretrained:
    """The model of a checkpoint; raises CommandError if it or its dictionary is missing."""
    dictionary = checkpoint.with_name("dict.txt")
    for path in (checkpoint, dictionary):
        if not path.is_file():
            raise CommandError(
                f"--pretrained needs {path}, which is no file; give a checkpoint of "
                "norm_masked_lm, and copy the dict.txt of its data beside it"
            )
    return Pretrained(checkpoint, dictionary, *map(_digest, (checkpoint, dictionary)))


@cache  # the runs of a sweep share the file, which may have a gigabyte
def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:12]
