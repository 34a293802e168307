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

psi starts at 1 and nu at 0. (Eq. 3 and 6 of the paper have gamma in the denominator, a slip.) In
every Transformer of the paper the input is pre-scaled, x / sqrt(mean_c x_c^2 + eps), which the
paper calls layer-scale, and the warm-up is as long as that of the learning rate. During the warm-up
x is divided by psi_B with the exact gradient (PN-V, Definition 1), while the running psi and nu are
updated. Inference divides by psi.

Differences from the paper: eps, which Algorithm 2 lacks, is added inside the root of psi^2.
``variant=released`` is what the released code computes: see ``power_norm_released.py``. By default
workers are not synchronized, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from norm_plugin.norms.base.means import check_share, finite_or, masked_means, zero_padding
from norm_plugin.norms.base.recomputation import may_be_recomputed
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.base.workers import Sync
from norm_plugin.norms.power_norm_v import PowerNormV, power_norm_v


class NuRecursion(NamedTuple):
    """The update of nu by the backward pass of a batch, Algorithm 2.

    Attributes:
        nu: (C,), updated in place, so that the next backward pass uses the new value.
        valid: bool (...), True at the positions that Gamma and Lambda include; None: all.
        step_size: 1 - a_b, a number or ().
        sync: take means over the positions of all workers.
        loss_scale: returns the factor by which every g is scaled; nu is stored without it.
    """

    nu: Tensor
    valid: Tensor | None
    step_size: float | Tensor
    sync: Sync
    loss_scale: Callable[[], float | Tensor]

    def scaled(self, like: Tensor) -> Tensor:
        """Return nu times the loss scale, (C,), in the dtype of ``like``."""
        return self.nu.to(like.dtype) * self.loss_scale()

    def update_from(self, x_hat: Tensor, g: Tensor) -> None:
        """Update nu, unless its new value is not finite. x_hat, g: (..., C).

        Without real positions, Gamma and Lambda are 0.
        """
        products, nu, step = [x_hat.square(), g * x_hat], self.nu, self.step_size
        (gamma, scaled_lambda), _ = masked_means(products, self.valid, self.sync)
        lambda_ = scaled_lambda / self.loss_scale()
        with torch.no_grad():
            nu.copy_(finite_or((nu * (1 - step * gamma) + step * lambda_).to(nu.dtype), nu))


class RunningPowerNorm(torch.autograd.Function):
    """Divide x by psi, with the approximate gradient of Algorithm 2.

    The released code has psi_B in the gradient, in place of psi.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, psi: Tensor, psi_of_gradient: Tensor, recursion: NuRecursion
    ) -> Tensor:
        """Return x / psi. x: (..., C); psi, psi_of_gradient: (C,)."""
        x_hat = x / psi
        ctx.save_for_backward(x_hat, psi_of_gradient)
        ctx.recursion = recursion
        return x_hat

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return dL/dx of Algorithm 2, with nu as the previous backward pass left it."""
        x_hat, psi = ctx.saved_tensors
        grad_x = (g - ctx.recursion.scaled(g) * x_hat) / psi
        ctx.recursion.update_from(x_hat, g)
        return grad_x, None, None, None


@register_norm(
    "powernorm",
    formula="gamma * x / psi + beta,  psi^2 = running mean of x^2 over positions",
    paper="Shen et al. 2020, Definition 2 and Algorithm 2",
    released=(
        "psi of the batch under the gradient, padding in its means, "
        "approximate gradient and two steps of psi in the warm-up, groups as "
        "heads; that is `variant=released`"
    ),
)
class PowerNorm(PowerNormV):
    """Divide by a running quadratic mean over positions, with running statistics in both passes.

    Options:
        eps: added inside the root, against division by zero
        alpha_fwd: a_f, the share of psi^2 that each forward keeps; the paper tries 0.9, 0.95 and
            0.99
        alpha_bwd: a_b, the share of nu that each backward pass keeps; the paper tries 0.9, 0.95
            and 0.99
        warmup_updates: optimizer updates during which the batch's own statistics normalize;
            under fairseq the default is the learning-rate warm-up of the run; variant=released
            counts forwards, and its norm after the encoder always has 1000
        layer_scale_groups: RMS pre-scaling of the input: 0 none, 1 over all channels (the
            paper), G over G groups of channels; in a Transformer the default of
            variant=released is the number of attention heads
        sync: take statistics over the positions of all workers; no effect with variant=released
    """

    exact_gradient: ClassVar[bool] = False
    mixes_after_warmup: ClassVar[bool] = False
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
        sync: Literal["on", "off"] = "off",
    ) -> None:
        super().__init__(
            dim,
            warmup_updates,
            eps=eps,
            alpha_fwd=alpha_fwd,
            layer_scale_groups=layer_scale_groups,
            sync=sync,
        )
        check_share("alpha_bwd", alpha_bwd)
        self.alpha_bwd = alpha_bwd
        self.register_buffer("nu", torch.zeros(dim))

    def divide(self, x: Tensor, valid: Tensor | None) -> Tensor:
        _, in_warmup, psi2 = self.pre_batch_state()
        recursion = self.recursion(valid)
        if in_warmup:
            x_hat, psi2_batch, count = power_norm_v(x, valid, self.eps, self.sync)
            if x_hat.requires_grad:  # autograd has the exact gradient; the hook updates nu
                values = x_hat.detach()
                x_hat.register_hook(
                    lambda g: recursion.update_from(
                        values, torch.zeros_like(values) if g is None else g
                    )
                )
        else:
            x = zero_padding(x, valid)
            (psi2_batch,), count = masked_means([x.detach().square()], valid, self.sync)
            psi = self.root(psi2, x)
            x_hat = RunningPowerNorm.apply(x, psi, psi, recursion)
        self.update_running(psi2_batch, count)
        return x_hat

    def pre_batch_state(self) -> tuple[int, bool, Tensor]:
        """Return t, whether the norm is in its warm-up, and psi_{t-1}^2, (C,)."""

        def state() -> tuple[int, bool, Tensor]:
            # Read before this batch updates it, unless the forward is recomputed later
            psi2 = self.psi2.clone() if may_be_recomputed() else self.psi2
            return self.updates_counted + 1, self.in_warmup, psi2

        return self.compute_once_per_forward(state)

    def recursion(self, valid: Tensor | None, step: float | Tensor | None = None) -> NuRecursion:
        """Return the recursion of nu.

        Args:
            valid: bool (...), True at real positions, or None.
            step: 1 - a_b; None: by the option alpha_bwd.
        """
        step = 1 - self.alpha_bwd if step is None else step
        return NuRecursion(self.nu, valid, step, self.sync, self.loss_scale_later())
