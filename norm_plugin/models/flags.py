"""The values of the flags that take one of several; a user's own placement extends them."""

from __future__ import annotations

from norm_plugin.declarations.flags import (
    ALLOW_MISMATCH,
    EMBEDDING,
    FULL,
    HEAD,
    INIT,
    KERNELS_CHOICE,
    NAN_CHECK,
    PLACEMENT,
    PLACEMENT_OF,
    PLAIN,
    QKV_SCOPE,
)
from norm_plugin.kernels import KERNELS
from norm_plugin.models.embeddings import FIXNORM
from norm_plugin.models.initialization import initializations
from norm_plugin.placements import PLACEMENTS

ON_OFF = ("on", "off")


def choices_of(key: str) -> list[str]:
    """Return the values of a flag of ``CHOICES``, by its key."""
    choices = {
        **dict.fromkeys((PLACEMENT, *PLACEMENT_OF.values()), PLACEMENTS),
        INIT: initializations(),
        EMBEDDING: (PLAIN, FIXNORM),
        QKV_SCOPE: (HEAD, FULL),
        NAN_CHECK: ON_OFF,
        KERNELS_CHOICE: KERNELS,
        ALLOW_MISMATCH: ON_OFF,
    }
    return list(choices[key])
