"""Sandwich-norm: x + norm2(f(norm1(x))), and a norm after the stack.

Sources: CogView (Ding et al. 2021, arXiv 2105.13290) and Peri-LN (Kim et al. 2025,
arXiv 2502.02732). Neither paper was read for this file. Peri-LN also normalizes the embeddings,
which it calls optional: ``--layernorm-embedding``.
"""

from __future__ import annotations

from norm_plugin.placements.base import INPUT, OUTPUT, Placement, register_placement


@register_placement(
    "sandwich",
    equation="x + norm2(f(norm1(x)))",
    paper="Ding et al. 2021, CogView; Kim et al. 2025, Peri-LN",
    paper_read=False,
)
class Sandwich(Placement):
    """A norm on the input and one on the output of each branch."""

    norms = (INPUT, OUTPUT)
    final_norm = True
