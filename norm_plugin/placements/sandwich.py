"""Sandwich-norm: x + norm2(f(norm1(x))), and a norm after the stack.

Source: CogView (Ding et al. 2021, arXiv 2105.13290), which was not read for this file. ``peri-ln``
also normalizes the embeddings.
"""

from __future__ import annotations

from norm_plugin.placements.base import INPUT, OUTPUT, Placement, register_placement


@register_placement(
    "sandwich",
    equation="x + norm2(f(norm1(x)))",
    paper="Ding et al. 2021, CogView",
    paper_read=False,
)
class Sandwich(Placement):
    """A norm on the input and one on the output of each branch."""

    norms = (INPUT, OUTPUT)
    final_norm = True
