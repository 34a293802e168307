"""PowerNorm as its released code computes it: ``--norm-type powernorm --norm-variant released``.

Per channel, at forward t = 1, 2, ... with a warm-up of W, over the n real positions V and all
N positions, padding included:

    forward     psi_B^2 = (1/n) sum_V x^2
                x_hat   = x / psi_B  for t <= W,    x / psi_{t-1}  later
                psi^2   <- ((t - 1) psi^2 + psi_B^2) / t          only for t < W, and then also
                psi^2   <- a_f psi^2 + (1 - a_f) psi_B^2
                y       = gamma * x_hat + beta
    backward    g       = gamma * dL/dy
                dL/dx   = (g - nu_{t-1} x_hat) / psi_B            during the warm-up and after
                nu_t    = nu_{t-1} (1 - (1 - a_b) Gamma) + (1 - a_b) Lambda
                Gamma   = (1/N) sum x_hat^2,    Lambda = (1/N) sum g x_hat

each psi with eps inside its root. What differs from the paper is: the batch's psi_B under the
gradient after the warm-up; Gamma and Lambda over padding too; the approximate gradient during
the warm-up; both updates of psi^2 in it; and that t counts forwards, whatever the trainer
reports. The released code stores nu / (1 - a_b), the same recursion. It fixes a_f = a_b = 0.9,
scales the layer by as many groups as there are attention heads, and gives the norm after the
encoder a warm-up of 1000 forwards, whatever the others have. In a Transformer this does the same,
unless ``--norm-layer-scale-groups`` is given. Workers are never synchronized. The recursion of nu
is the paper's; see ``power_norm.py``.

Not in these formulas: a batch without a real position is divided by psi and moves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from norm_plugin.norms.power_norm import NuRecursion

WARMUP_AFTER_ENCODER = 1000


def released_psi2(
    psi2: Tensor, psi2_batch: Tensor, t: int, warmup: int, alpha_fwd: float
) -> Tensor:
    """The running psi^2 after forward ``t`` of a warm-up of ``warmup`` forwards. All (C,)."""
    if t < warmup:
        psi2 = ((t - 1) * psi2 + psi2_batch) / t
    return alpha_fwd * psi2 + (1 - alpha_fwd) * psi2_batch


class ReleasedPowerNorm(torch.autograd.Function):
    """x_hat = x / psi, with psi_B under the gradient; the recursion moves nu."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, psi: Tensor, psi_batch: Tensor, recursion: NuRecursion
    ) -> Tensor:
        """x: (..., C); psi, psi_batch: (C,). The recursion takes all positions in."""
        x_hat = x / psi
        ctx.save_for_backward(x_hat, psi_batch)
        ctx.recursion = recursion
        return x_hat

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Every position alike, padding included."""
        x_hat, psi_batch = ctx.saved_tensors
        grad_x = (g - ctx.recursion.scaled(g) * x_hat) / psi_batch
        ctx.recursion.move(x_hat, g)
        return grad_x, None, None, None
