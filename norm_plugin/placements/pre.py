"""Pre-norm: x + f(norm(x)), and a norm after the stack (Xiong et al. 2020, Table 1)."""

from __future__ import annotations

from norm_plugin.placements.base import INPUT, Placement, register_placement


@register_placement("pre", equation="x + f(norm(x))", paper="Xiong et al. 2020, Table 1")
class Pre(Placement):
    """A norm on the input of each branch. The stream itself is normalized once, at its end."""

    norms = (INPUT,)
    final_norm = True
    normalize_before = True
