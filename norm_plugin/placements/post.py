"""Post-norm: norm(x + f(x)), the Transformer as published (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from norm_plugin.placements.base import SUM, Placement, register_placement


@register_placement("post", equation="norm(x + f(x))", paper="Vaswani et al. 2017, section 3.1")
class Post(Placement):
    """A norm of the sum. Every norm is on the residual stream, so none can be folded."""

    norms = (SUM,)
    normalize_before = False
