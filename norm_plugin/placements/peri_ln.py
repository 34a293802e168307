"""Peri-LN: sandwich-norm, and a norm of the embeddings.

    x_0 = norm(embeddings),    x + norm2(f(norm1(x))),    a norm after the stack

Source: Kim et al. 2025, arXiv 2502.02732. The paper was not read for this file; the equation is
quoted from notes.
"""

from __future__ import annotations

from norm_plugin.placements.base import register_placement
from norm_plugin.placements.sandwich import Sandwich


@register_placement(
    "peri-ln",
    equation="x + norm2(f(norm1(x))),  and a norm of the embeddings",
    paper="Kim et al. 2025, Peri-LN",
    paper_read=False,
)
class PeriLN(Sandwich):
    """``sandwich`` on normalized embeddings."""

    embedding_norm = True
