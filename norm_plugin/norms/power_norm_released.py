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
encoder a warm-up of 1000 forwards whatever the others have: in a Transformer, so does this; only
``--norm-layer-scale-groups`` says otherwise. Workers are never synchronised.

Written from these formulas. Beyond them: a batch without a real position is divided by psi and
moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from norm_plugin.norms.base.statistics import finite_or, masked_means

WARMUP_AFTER_ENCODER = 1000


def released_psi2(
    psi2: Tensor, psi2_batch: Tensor, t: int, warmup: int, alpha_fwd: float
) -> Tensor:
    """The running psi^2 after forward ``t`` of a warm-up of ``warmup`` forwards. All (C,)."""
    if t < warmup:
        psi2 = ((t - 1) * psi2 + psi2_batch) / t
    return alpha_fwd * psi2 + (1 - alpha_fwd) * psi2_batch


def next_nu(nu: Tensor, gamma: Tensor, lambda_: Tensor, step: float | Tensor) -> Tensor:
    """nu_t = nu_{t-1} (1 - (1 - a_b) Gamma) + (1 - a_b) Lambda. All (C,); step: 1 - a_b."""
    return finite_or((nu * (1 - step * gamma) + step * lambda_).to(nu.dtype), nu)


def step_nu(nu: Tensor, gamma: Tensor, lambda_: Tensor, step: float | Tensor) -> None:
    """nu <- nu_t, in place; see :func:`next_nu`. A statistic has no graph (create_graph=True)."""
    with torch.no_grad():
        nu.copy_(next_nu(nu, gamma, lambda_, step))


StepNu = Callable[[Tensor, Tensor, Tensor, float | Tensor], None]
"""The arguments and the effect of :func:`step_nu`."""


class ReleasedPowerNorm(torch.autograd.Function):
    """x_hat = x / psi, with psi_B under the gradient; moves ``nu`` in place."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        psi: Tensor,
        psi_batch: Tensor,
        nu: Tensor,
        has_positions: Tensor,
        alpha_bwd: float,
        loss_scale: float | Tensor,
    ) -> Tensor:
        """x: (..., C); psi, psi_batch, nu: (C,); has_positions: bool ()."""
        x_hat = x / psi
        ctx.save_for_backward(x_hat, psi_batch, has_positions)
        # nu is state, not an input: the next backward pass must see what this one leaves
        ctx.nu, ctx.alpha_bwd, ctx.loss_scale = nu, alpha_bwd, loss_scale
        return x_hat

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Every position alike, padding included."""
        x_hat, psi_batch, has_positions = ctx.saved_tensors
        grad_x = (g - ctx.nu.to(g.dtype) * ctx.loss_scale * x_hat) / psi_batch
        (gamma, lambda_), _ = masked_means([x_hat.square(), g * x_hat], valid=None)
        step = (1 - ctx.alpha_bwd) * has_positions.to(g.dtype)
        step_nu(ctx.nu, gamma, lambda_ / ctx.loss_scale, step)
        return grad_x, None, None, None, None, None, None
