"""BatchNorm: a pass for mu_B and sigma_B and one for x_hat; two more backward."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor

from norm_plugin.kernels._column_norm import Batch, Gradients, column_norm, infer
from norm_plugin.kernels._fused import fuses
from norm_plugin.kernels._ops import Ops
from norm_plugin.norms.batch_norm import BatchNorm, RunningMomentsNorm


class BatchNormBatch(Batch):
    """x_hat = (u - mu_B) / sigma_B with its exact gradient, where the share n/N of the variance
    may be all that is taken (``over_padding``)."""

    over_padding = False
    share: Union[float, Tensor] = 1.0

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        total, squares = self.moments(x, centre=True)
        self.mean = self.shift = self.means(total, len(x))
        if self.sync:
            squares = squares + self._between_workers(total, x)
        self.variance = self.more_means(squares)
        if self.over_padding:
            self.share = self.count / max(len(x), 1)
            self.variance = self.variance * self.share
        self.inverse = torch.rsqrt(self.variance + self.eps)
        return self.map(x, weight * self.inverse, bias)[0]

    def _between_workers(self, total: Tensor, x: Tensor) -> Tensor:
        """n (own mean - mu_B)^2: the squares around mu_B beyond those around the own mean."""
        count = total.new_full((), len(x)) if self.valid is None else self.valid.sum()
        return count * (total / count.clamp(min=1) - self.mean).square()

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        every, real, with_u = self.products(dy, x)
        with_x_hat = with_u * self.inverse
        means = self.more_means(torch.stack([weight * real, weight * with_x_hat]))
        constant = -means[0] * self.inverse
        of_u = -means[1] * self.inverse.square() * self.share
        dx, _ = self.ops.column_gradient(
            dy,
            x,
            self.rate,
            self.valid,
            self.shift,
            weight * self.inverse,
            constant,
            of_u,
            False,
        )
        return dx, with_x_hat, every


def infer_by_moments(
    norm: RunningMomentsNorm, x: Tensor, ops: Ops, groups: int
) -> Optional[Tensor]:
    """gamma (u - running mean) / running deviation + beta; see :func:`infer`."""
    root = (norm.running_var + norm.eps).sqrt()
    return infer(norm, x, ops, groups, norm.eps, root, norm.running_mean)


@fuses(BatchNorm)
def batch_norm(norm: BatchNorm, x: Tensor, valid: Optional[Tensor], ops: Ops) -> Optional[Tensor]:
    """gamma * x_hat + beta. x, y: (N, C)."""
    if not norm.training:
        return infer_by_moments(norm, x, ops, norm.layer_scale_groups)
    batch = BatchNormBatch(ops, valid, norm.layer_scale_groups, norm.eps, norm.sync)
    batch.over_padding = norm.variant == "released"
    y = column_norm(norm, x, batch)
    norm.move_running(batch.mean, batch.variance, batch.count)
    return y
