"""Where the norms stand: before each block of the residual stream, or after the sum.

``pre`` is x + f(norm(x)) with one more norm after the stack; ``post`` is norm(x + f(x))
(Xiong et al. 2020, Table 1). fairseq has a flag for each stack, ``--encoder-normalize-before``
and ``--decoder-normalize-before``; ``--norm-placement`` sets both.
"""

from __future__ import annotations

from typing import Any

PLACEMENTS = {"pre": True, "post": False}
"""Placement to the value of fairseq's ``normalize_before``."""

SIDES = ("encoder", "decoder")


def apply_placement(args: Any, arch_placement: str = "") -> None:
    """Set the two ``normalize_before`` of ``args`` from ``norm_placement`` or the arch.

    Call it before the stock architecture function fills in what was not given.

    Args:
        args: the flat Namespace of a command line, or the ``model`` node of a YAML file.
        arch_placement: what the name of the architecture says, or nothing.

    Raises:
        ValueError: the flags, or the flags and the architecture, contradict each other.
    """
    asked = getattr(args, "norm_placement", None)
    if asked is not None and asked not in PLACEMENTS:
        raise ValueError(f"norm_placement is {asked!r}; choose from {', '.join(PLACEMENTS)}")
    if asked and arch_placement and asked != arch_placement:
        raise ValueError(
            f"--norm-placement {asked} contradicts the architecture, which is "
            f"{arch_placement}-norm: drop one of them"
        )
    placement = asked or arch_placement
    if not placement:
        return
    for side in SIDES:
        key = f"{side}_normalize_before"
        given = getattr(args, key, None)
        if given is not None and given != PLACEMENTS[placement]:
            raise ValueError(
                f"{key} is {given}, which contradicts {placement}-norm: drop "
                f"--{key.replace('_', '-')} or the placement"
            )
        setattr(args, key, PLACEMENTS[placement])
