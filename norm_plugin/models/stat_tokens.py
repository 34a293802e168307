"""What ``--norm-stat-tokens`` asks for."""

from __future__ import annotations

from collections.abc import Iterable

from norm_plugin.models.flags import STAT_TOKENS, flag_of, option_field
from norm_plugin.norms import norm_spec


def stat_tokens(settings: object, norms: Iterable[str]) -> int | None:
    """How many tokens batch statistics are taken over; None: those of the batch.

    Args:
        settings: our flat names, as attributes.
        norms: those of the model.

    Raises:
        ValueError: the number is below 1, no norm has batch statistics, or ``--norm-sync on``.
    """
    given = getattr(settings, STAT_TOKENS, None)
    if given is None:
        return None
    flag, tokens = flag_of(STAT_TOKENS), int(given)
    if tokens < 1:
        raise ValueError(f"{flag} is {given}; it must be 1 or more")
    if not any(norm_spec(name).batch_statistics for name in norms):
        raise ValueError(
            f"{flag} {given}: none of the chosen norms, {', '.join(sorted(norms))}, has batch "
            "statistics; drop it, or choose such a norm"
        )
    if getattr(settings, option_field("sync"), None) in ("on", True):
        raise ValueError(
            f"{flag} {given} contradicts --norm-sync on: workers have different numbers of groups, "
            "so their statistics cannot be synchronized; drop one of them"
        )
    return tokens
