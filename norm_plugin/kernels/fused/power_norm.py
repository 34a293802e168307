"""PowerNorm of the paper: one pass forward and one backward, for both divide by known numbers.

During the warm-up it is PN-V, whose backward pass nu watches.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from norm_plugin.kernels.autograd.columns import Batch, Gradients, column_norm, infer
from norm_plugin.kernels.autograd.gradients import to_statistics_dtype
from norm_plugin.kernels.fused.power_norm_released import power_norm_as_released
from norm_plugin.kernels.fused.power_norm_v import PowerNormVBatch
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.power_norm import NuRecursion, PowerNorm


class WarmingUp(PowerNormVBatch):
    """PN-V, with the recursion of nu looking on."""

    def __init__(self, recursion: NuRecursion, *others: Any) -> None:
        """others: those of :class:`Batch`."""
        super().__init__(*others)
        self.recursion = recursion

    def watch(self, lambda_: Tensor) -> None:
        self.recursion.step(self.psi2 * self.inverse.square(), lambda_, self.ops.step_nu)


class Running(Batch):
    """x_hat = u / psi_{t-1} with the approximate gradient of Algorithm 2."""

    psi2: Tensor

    def __init__(self, psi: Tensor, recursion: NuRecursion, *others: Any) -> None:
        """psi: (C,), that of the batches before; others: those of :class:`Batch`."""
        super().__init__(*others)
        self.psi, self.recursion = psi, recursion

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y, squares = self.map(x, weight / self.psi, bias, bias)
        self.psi2 = self.means(squares[0], len(x))
        return y

    def x_hat_per_u(self) -> Tensor:
        return 1 / self.psi

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        dy_coef = weight / self.psi
        u_coef = -self.recursion.scaled(self.psi) / self.psi.square()
        dx, (every, _, with_u) = self.ops.column_gradient(
            dy, x, self.rstd, self.valid, None, dy_coef, None, u_coef, True
        )
        dweight = with_u / self.psi
        lambda_ = self.more_means(weight * dweight)
        self.recursion.step(self.psi2 / self.psi.square(), lambda_, self.ops.step_nu)
        return dx, dweight, every


@fuses(PowerNorm)
def power_norm(norm: PowerNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor | None:
    """gamma * x_hat + beta. x, y: (N, C)."""
    if not norm.training:
        root = norm.root(norm.psi2, norm.psi2)
        return infer(norm, x, ops, norm.layer_scale_groups, norm.eps, root)
    seen = norm.start()
    if norm.variant == "released":
        y, moved = power_norm_as_released(norm, x, valid, ops, seen)
    else:
        others = (norm.recursion(valid), ops, valid, norm.layer_scale_groups, norm.eps, norm.sync)
        batch: WarmingUp | Running
        if seen.in_warmup:
            batch = WarmingUp(*others)
        else:
            batch = Running(to_statistics_dtype(norm.root(seen.psi2, seen.psi2), x), *others)
        y = column_norm(norm, x, batch)
        moved = norm.next_psi2(seen.psi2, batch.psi2, batch.count, ops.move)
    norm.finish(moved)
    return y
