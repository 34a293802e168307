"""PowerNorm (Shen et al. 2020, "PowerNorm: Rethinking Batch Normalization in Transformers").

Definition 2 and Algorithm 2, per channel, over the set V of the n real positions:

    forward     psi_B^2 = (1/n) sum_V x^2
                x_hat   = x / psi_{t-1}
                psi_t^2 = a_f psi_{t-1}^2 + (1 - a_f) psi_B^2
                y       = gamma * x_hat + beta
    backward    g       = gamma * dL/dy
                dL/dx   = (g - nu_{t-1} x_hat) / psi_{t-1}
                nu_t    = nu_{t-1} (1 - (1 - a_b) Gamma) + (1 - a_b) Lambda
                Gamma   = mean_V x_hat^2,    Lambda = mean_V (g x_hat)

psi starts at 1 and nu at 0. (Eq. 3 and 6 of the paper put gamma in the denominator, a slip.)
In every Transformer of the paper a layer-scale comes first, x / sqrt(mean_c x^2 + eps), and a
warm-up as long as the learning rate's: during it x is divided by psi_B, with the exact
gradient of that (PN-V, Definition 1), while psi and nu build up. Inference divides by psi.

Where this parts from the paper: eps, which Algorithm 2 lacks, is added inside the root of
psi^2. Where the released code parts from the paper: it divides the gradient by the batch's
psi_B also after the warm-up, lets padding into the means of its backward pass, applies the
moving average twice during warm-up, counts forwards instead of updates, and scales the layer
by groups of channels. This file follows the paper.

Padded positions are divided too, but enter no mean and get no nu term. Everything is computed
and stored in float32 at least; the cast back comes after gamma and beta.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from norm_plugin.norms._registry import register_norm
from norm_plugin.norms._statistics import BatchStatisticsNorm, in_backward, masked_mean
from norm_plugin.norms.rms_norm import divide_by_rms


def layer_scale(x: Tensor, groups: int, eps: float) -> Tensor:
    """x / sqrt(mean_c x^2 + eps) over each of ``groups`` groups of channels. x: (..., C)."""
    if groups == 0:
        return x
    return divide_by_rms(x.unflatten(-1, (groups, -1)), eps).flatten(-2)


def power_norm_v(x: Tensor, valid: Optional[Tensor], eps: float) -> Tuple[Tensor, Tensor]:
    """PN-V, Definition 1: x / psi_B with its exact gradient, and psi_B^2 (C,). x: (..., C)."""
    psi2 = masked_mean(x.square(), valid)
    return x * torch.rsqrt(psi2 + eps), psi2.detach()


class RunningPowerNorm(torch.autograd.Function):
    """x_hat = x / psi with the approximate gradient of Algorithm 2; moves ``nu`` in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, psi: Tensor, nu: Tensor, valid: Optional[Tensor], alpha_bwd: float
    ) -> Tensor:
        """x: (..., C); psi, nu: (C,); valid: bool (...) or None."""
        x_hat = x / psi
        ctx.save_for_backward(x_hat, psi, valid)
        # nu is state, not an input: the next backward pass must see what this one leaves
        ctx.nu, ctx.alpha_bwd = nu, alpha_bwd
        return x_hat

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tuple[Optional[Tensor], ...]:
        """Algorithm 2. At padded positions psi and nu are constants: g / psi."""
        x_hat, psi, valid = ctx.saved_tensors
        pull = ctx.nu.to(g.dtype) * x_hat
        if valid is not None:
            pull = pull * valid.unsqueeze(-1)
        grad_x = (g - pull) / psi
        move_nu(ctx.nu, x_hat, g, valid, ctx.alpha_bwd)
        return grad_x, None, None, None, None


def move_nu(
    nu: Tensor, x_hat: Tensor, g: Tensor, valid: Optional[Tensor], alpha_bwd: float
) -> None:
    """nu_t = nu_{t-1} (1 - (1 - a_b) Gamma) + (1 - a_b) Lambda, in place. nu: (C,)."""
    gamma = masked_mean(x_hat.square(), valid)
    lambda_ = masked_mean(g * x_hat, valid)
    nu.mul_(1 - (1 - alpha_bwd) * gamma).add_((1 - alpha_bwd) * lambda_)


@register_norm(
    "powernorm",
    formula="gamma * x / psi + beta,  psi^2 = running mean of x^2 over positions",
    paper="Shen et al. 2020, Definition 2 and Algorithm 2",
)
class PowerNorm(BatchStatisticsNorm):
    """Running quadratic mean over positions, forward and backward.

    Options:
        eps: added to the mean squares, inside the root
        alpha_fwd: a_f, how much of psi^2 one forward keeps; the paper tunes over 0.9, 0.95,
            0.99
        alpha_bwd: a_b, the same for nu in the backward pass
        warmup_updates: optimizer updates during which the batch's own statistics normalize;
            under fairseq the default is the learning-rate warm-up of the run
        layer_scale_groups: layer-scale before the norm: 0 none, 1 the whole layer (the
            paper), G over G groups of channels
    """

    psi2: Tensor
    nu: Tensor

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        alpha_fwd: float = 0.9,
        alpha_bwd: float = 0.9,
        warmup_updates: int = 0,
        layer_scale_groups: int = 1,
    ) -> None:
        super().__init__(dim, warmup_updates)
        for name, alpha in (("alpha_fwd", alpha_fwd), ("alpha_bwd", alpha_bwd)):
            if not 0 <= alpha < 1:
                raise ValueError(f"{name} is {alpha}; it must be in [0, 1)")
        if layer_scale_groups < 0 or (layer_scale_groups and dim % layer_scale_groups):
            raise ValueError(
                f"layer_scale_groups is {layer_scale_groups}; it must be 0 or divide {dim}"
            )
        self.eps, self.alpha_fwd, self.alpha_bwd = eps, alpha_fwd, alpha_bwd
        self.layer_scale_groups = layer_scale_groups
        self.register_buffer("psi2", torch.ones(dim))
        self.register_buffer("nu", torch.zeros(dim))
        self._seen = (self.in_warmup, self.psi2)

    def normalize(self, x: Tensor, valid: Optional[Tensor]) -> Tensor:
        x = layer_scale(x, self.layer_scale_groups, self.eps)
        if not self.training:
            return self.affine(x / self._root(self.psi2, x))
        recomputing = in_backward()
        if not recomputing:  # activation checkpointing must repeat what this forward saw
            self._seen = (self.in_warmup, self.psi2.clone())
        in_warmup, psi2 = self._seen
        if in_warmup:
            x_hat, psi2_batch = power_norm_v(x, valid, self.eps)
            self._move_nu_in_backward(x_hat, valid)
        else:
            x_hat = RunningPowerNorm.apply(x, self._root(psi2, x), self.nu, valid, self.alpha_bwd)
            psi2_batch = masked_mean(x.detach().square(), valid)
        if not recomputing:
            self.psi2.mul_(self.alpha_fwd).add_((1 - self.alpha_fwd) * psi2_batch)
            self.count_forward()
        return self.affine(x_hat)

    def _root(self, psi2: Tensor, x: Tensor) -> Tensor:
        """psi = sqrt(psi^2 + eps), (C,), in the dtype of x."""
        return (psi2 + self.eps).sqrt().to(x.dtype)

    def _move_nu_in_backward(self, x_hat: Tensor, valid: Optional[Tensor]) -> None:
        """During the warm-up autograd has the exact gradient; nu only watches it pass."""
        if x_hat.requires_grad:
            seen = x_hat.detach()
            x_hat.register_hook(lambda g: move_nu(self.nu, seen, g, valid, self.alpha_bwd))
