"""What ``--norm-record`` asks for: how often, at which sites, into which file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from norm_plugin.models.flags import RECORD, RECORD_FILE, RECORD_SITES, SITE_FLAGS, flag_of
from norm_plugin.models.sites import SIDES, Site

ALL = "all"
FILE = "norm_record.jsonl.gz"
"""The name of the file in the folder of the checkpoints, unless another one is given."""


@dataclass(frozen=True)
class RecordSettings:
    """What a run records of its norms.

    Attributes:
        every: a record is made of update 1, 1 + every, 1 + 2 every and so on.
        words: ``all``, sides and sites.
        file: where to write; None: :data:`FILE` in the folder of the checkpoints.
    """

    every: int
    words: tuple[str, ...]
    file: str | None

    def takes(self, site: Site) -> bool:
        """Whether the norms at ``site`` are recorded."""
        return not {ALL, site.side, site.flag}.isdisjoint(self.words)

    def path(self, save_dir: str) -> Path:
        """The file of a run with this ``--save-dir``."""
        return Path(self.file) if self.file else Path(save_dir) / FILE


def record_settings(settings: object, sites: Sequence[Site]) -> RecordSettings | None:
    """What these settings say; None where nothing is recorded.

    Args:
        settings: fairseq's flat names and ours, as attributes.
        sites: those of the model.

    Raises:
        ValueError: EVERY is below 1, an unknown site or one that the model lacks, or a file or
            sites without EVERY.
    """
    every, given, file = (
        getattr(settings, key, None) for key in (RECORD, RECORD_SITES, RECORD_FILE)
    )
    if every is None:
        for key, value in ((RECORD_SITES, given), (RECORD_FILE, file)):
            if value is not None:
                raise ValueError(f"{flag_of(key)} {value} needs {flag_of(RECORD)} EVERY")
        return None
    if int(every) < 1:
        raise ValueError(f"{flag_of(RECORD)} is {every}; it must be 1 or more, as in 100")
    words = tuple(word.strip() for word in str(given or ALL).split(","))
    present = {ALL, *SIDES, *(site.flag for site in sites)}
    for word in words:
        if word not in present:
            why = "this model has no such site" if word in SITE_FLAGS else "unknown site"
            raise ValueError(
                f"{flag_of(RECORD_SITES)} {word}: {why}; choose from {', '.join(sorted(present))}, "
                "separated by commas"
            )
    return RecordSettings(int(every), words, file)
