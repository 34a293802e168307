"""Norms over windows of batches, in two passes forward, for the batch's squares and for x_hat, and
two backward. The methods of the plain forms update their windows."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.fused.columns import ColumnPass, Gradients, Inference, fuses_columns
from norm_plugin.kernels.fused.gradients import to_statistics_dtype
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.base.window import WindowedScale, WindowNorm
from norm_plugin.norms.mabn import MovingAverageBatchNorm
from norm_plugin.norms.unified_norm import UnifiedNorm


class WindowBatch(ColumnPass):
    """Compute x_hat = ratio z, z = x / root, with dL/dx = (g - psi z) / root for g = dL/dz."""

    def __init__(self, norm: WindowNorm, valid: Tensor | None, ops: Ops) -> None:
        super().__init__(norm, valid, ops)
        self.loss_scale = norm.loss_scale_later()

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        def updated() -> WindowedScale:
            square = self.means(self.moments(x, center=False)[1], len(x))
            return self.norm.take_in(square, self.count)

        root, self.statistic, ratio = self.norm.compute_once_per_forward(updated)
        self.root = to_statistics_dtype(root, x)
        self.gain = 1 / self.root if ratio is None else to_statistics_dtype(ratio, x) / self.root
        return self.map(x, weight * self.gain, bias, bias)[0]

    def inverse_scale(self) -> Tensor:
        return self.gain

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        every, _, with_x = self.products(dy, x)
        dweight = self.gain * with_x
        g_mean = self.means(weight * dweight, len(x))
        scale = self.loss_scale()
        psi = self.statistic(g_mean / scale, self.count) * scale
        dy_coef, u_coef = weight * self.gain, -psi / self.root.square()
        dx, _ = self.ops.column_gradient(
            dy, x, None, self.valid, None, dy_coef, None, u_coef, False
        )
        return dx, dweight, every


@fuses_columns(MovingAverageBatchNorm, UnifiedNorm)
def window_norm(norm: WindowNorm, valid: Tensor | None, ops: Ops) -> ColumnPass | Inference:
    """Return the pass that computes gamma * x_hat + beta."""
    if not norm.training:
        return Inference((norm.running_square + norm.eps).sqrt())
    return WindowBatch(norm, valid, ops)
