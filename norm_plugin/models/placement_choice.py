"""The placement of each stack: by a flag of ours, by fairseq's, or by an architecture's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from norm_plugin.models.flags import CHOICES, PLACEMENT, PLACEMENT_OF, flag_of
from norm_plugin.models.sites import EMBEDDING_SITES, PROJECTIONS, SIDES, Site
from norm_plugin.norms import norm_spec
from norm_plugin.placements import INPUT, PLACEMENTS, placement_class


def chosen_word(settings: object, key: str) -> str | None:
    """The word given for a flag; ValueError for another word, which only YAML can bring here."""
    value = getattr(settings, key, None)
    if isinstance(value, bool):  # YAML reads on and off as booleans
        value = "on" if value else "off"
    words = list(CHOICES[key].words())
    if value is not None and value not in words:
        raise ValueError(f"{key} is {value!r}; choose from {', '.join(words)}")
    return None if value is None else str(value)


def chosen_placement(settings: object, sides: Sequence[str] = SIDES) -> dict[str, str]:
    """The placement of each side: that of its flag, of ``--norm-placement``, or of fairseq's flag.

    Raises:
        ValueError: an unknown placement, or one for a stack that the model lacks.
    """
    for side, key in PLACEMENT_OF.items():
        if side not in sides and chosen_word(settings, key) is not None:
            raise ValueError(f"{flag_of(key)} is given, but this model has no {side}: drop it")
    # of the class itself: a user's own may inherit from one that fairseq has
    by_flag = {vars(cls).get("normalize_before"): name for name, cls in PLACEMENTS.items()}
    return {
        side: _placement_word(settings, side)
        or by_flag[bool(getattr(settings, f"{side}_normalize_before", 0))]
        for side in sides
    }


def _placement_word(settings: object, side: str) -> str | None:
    """What ``--norm-placement``, or the same flag for a side, says of that side."""
    return chosen_word(settings, PLACEMENT_OF[side]) or chosen_word(settings, PLACEMENT)


def apply_placement(
    settings: object, arch_placement: str = "", sides: Sequence[str] = SIDES
) -> None:
    """Set ``norm_placement`` and each ``normalize_before`` by the flag or the architecture's name.

    Call it before the stock architecture function fills in what was not given.

    Raises:
        ValueError: the flags, or the flags and the architecture, contradict each other.
    """
    for side in sides:
        asked = _placement_word(settings, side)
        if asked and arch_placement and asked != arch_placement:
            raise ValueError(
                f"placement {asked} of the {side} contradicts the architecture, which is "
                f"{arch_placement}-norm: drop one of them"
            )
        if placement := asked or arch_placement:
            _set_normalize_before(settings, side, placement)
    if arch_placement:
        setattr(settings, PLACEMENT, arch_placement)


def _set_normalize_before(settings: object, side: str, placement: str) -> None:
    """Set fairseq's flag as ``placement`` needs it; ValueError if it is given otherwise."""
    key, before = f"{side}_normalize_before", INPUT in placement_class(placement).norms_of("self")
    given = getattr(settings, key, None)
    if given is not None and given != before:
        raise ValueError(
            f"{key} is {given}, which contradicts {placement}-norm: drop "
            f"{flag_of(key)} or the placement"
        )
    setattr(settings, key, before)


def check_norms(norms: Mapping[Site, str], placement: Mapping[str, str]) -> None:
    """Raise ValueError for a norm that the placement of its side cannot train with."""
    for site, norm in norms.items():
        reason = placement_class(placement[site.side]).needs_bounded_norms
        in_branch = site not in EMBEDDING_SITES.values() and site.flag not in PROJECTIONS
        if reason and in_branch and not norm_spec(norm).cls.bounded:
            raise ValueError(
                f"{site.name} is {norm}, which does not bound its output, with placement "
                f"{placement[site.side]}: {reason}. Choose another norm, or another placement"
            )
