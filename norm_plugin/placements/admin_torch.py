"""Admin by formula: norm(omega * x + f(x)), with omega from the number of branches of the stack.

omega is a learned vector per branch. In a stack of n branches all of them start at

    omega^2 = (n + 1) / log(n + 1) - 1

so nothing is measured, and omega does not depend on a batch or its padding. Source: the authors'
package (microsoft/admin-torch, admin.py, ``O(logn)``), which was read, for Admin (Liu et al. 2020,
arXiv 2004.08249). n is "the total number of residual layers": 2 L in an encoder of L layers; the
decoder also counts its attentions over the encoder. The package also offers an omega that is not
learned, and a scalar instead of the vector.
"""

from __future__ import annotations

from math import log, sqrt

import torch
from torch import Tensor, nn

from norm_plugin.placements.base import SUM, LayerPlace, Placement, register_placement


@register_placement(
    "admin-torch",
    equation="norm(omega * x + f(x)),  omega^2 = (n + 1) / log(n + 1) - 1 at the start",
    paper="Liu et al. 2020, Admin, as in microsoft/admin-torch",
    paper_read=False,
)
class AdminTorch(Placement):
    """Post-norm that multiplies the stream by omega, initialized from the depth.

    Attributes:
        omega: per branch, (C,).
    """

    norms = (SUM,)

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        n = place.branches_of_stack
        start = torch.full((place.dim,), sqrt((n + 1) / log(n + 1) - 1))
        self.omega = nn.ParameterDict(
            {branch: nn.Parameter(start.clone()) for branch in place.branches}
        )

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        return self.omega[branch] * x + fx
