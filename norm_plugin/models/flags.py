"""The values of the flags that take one of several; a user's own placement extends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
    QKV_SCOPE,
)
from norm_plugin.kernels import KERNELS
from norm_plugin.models.embeddings import EMBEDDINGS
from norm_plugin.models.initialization import initializations
from norm_plugin.placements import PLACEMENTS

ON_OFF = ("on", "off")
_CHOICES: dict[str, Callable[[], Iterable[str]]] = {
    PLACEMENT: lambda: PLACEMENTS,
    PLACEMENT_OF["encoder"]: lambda: PLACEMENTS,
    PLACEMENT_OF["decoder"]: lambda: PLACEMENTS,
    INIT: initializations,
    EMBEDDING: lambda: EMBEDDINGS,
    QKV_SCOPE: lambda: (HEAD, FULL),
    NAN_CHECK: lambda: ON_OFF,
    KERNELS_CHOICE: lambda: KERNELS,
    ALLOW_MISMATCH: lambda: ON_OFF,
}


def choices_of(key: str) -> list[str]:
    """Return the values of a flag of ``CHOICES``, by its key."""
    return list(_CHOICES[key]())
