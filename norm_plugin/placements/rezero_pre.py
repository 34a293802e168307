"""ReZero's gate on a pre-norm branch: x + a f(norm(x)), a learned and 0 at the start.

It separates the two changes of ReZero: the gate, and the missing norms. The gate is that of ReZero
(Bachlechner et al. 2020, arXiv 2003.04887), one number per layer; the branch is that of pre-norm,
with the norm after the stack. A gate with one number per branch is SkipInit (De and Smith 2020,
arXiv 2002.10444), whose branches have no norm. None of these texts was read for this file.
"""

from __future__ import annotations

from norm_plugin.placements.base import INPUT, register_placement
from norm_plugin.placements.rezero import ReZero


@register_placement(
    "rezero-pre",
    equation="x + a f(norm(x)),  a = 0 at the start",
    paper="the gate of Bachlechner et al. 2020 on pre-norm",
    paper_read=False,
)
class ReZeroPre(ReZero):
    """Pre-norm with ReZero's learned number per layer.

    Attributes:
        a: the weight of every branch of the layer, (1,).
    """

    norms = (INPUT,)
    final_norm = True
