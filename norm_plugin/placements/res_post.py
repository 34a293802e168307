"""Res-post-norm: x + norm(f(x)), and a norm after the stack.

Sources: Swin Transformer V2 (Liu et al. 2021, arXiv 2111.09883), and OLMo 2 (2024, arXiv
2501.00656). Neither paper was read for this file. Both models have a norm after their last layer.
Dropout is placed as in Swin V2, norm(dropout(f(x))); OLMo's code has x + dropout(norm(f(x))). Swin
V2 starts the gains of these norms at 0; here, as in OLMo 2, they start at the norm's default.
"""

from __future__ import annotations

from norm_plugin.placements.base import OUTPUT, Placement, register_placement


@register_placement(
    "res-post",
    equation="x + norm(f(x))",
    paper="Liu et al. 2021, Swin Transformer V2; OLMo 2, 2024",
    paper_read=False,
)
class ResPost(Placement):
    """A norm on the output of each branch; the input of the branch is the unnormalized stream."""

    norms = (OUTPUT,)
    final_norm = True
