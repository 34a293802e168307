"""RepBN: BatchNorm and eta x in one map; what blends LayerNorm in as well stays plain."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from norm_plugin.kernels.autograd.columns import Gradients, OfParameters, column_norm, infer
from norm_plugin.kernels.autograd.gradients import to_statistics_dtype
from norm_plugin.kernels.fused.batch_norm import BatchNormBatch
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.rep_batch_norm import RepBatchNorm


class RepBatch(BatchNormBatch):
    """gamma x_hat + beta + eta x = (gamma / sigma_B + eta) (x - mu_B) + beta + eta mu_B."""

    def __init__(self, eta: Tensor, *others: Any) -> None:
        """eta: (1,); others: those of :class:`Batch`."""
        super().__init__(*others, one_call=False)  # whose gain is another
        self.eta = eta

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        self.see(x)
        return self.map(x, self.gain(weight), bias + self.eta * self.mean, bias)[0]

    def gain(self, weight: Tensor) -> Tensor:
        return super().gain(weight) + self.eta

    def products(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        every, real, with_centered = super().products(dy, x)
        self.of_eta = (with_centered + self.mean * real).sum()
        return every, real, with_centered

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> OfParameters:
        gradients = super().backward_to_parameters(dy, x)
        return (*gradients, self.of_eta)

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        gradients = super().backward(dy, x, weight)
        return (*gradients, self.of_eta)


@fuses(RepBatchNorm)
def rep_batch_norm(norm: RepBatchNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor | None:
    """gamma * x_hat + beta + eta * x. x, y: (N, C)."""
    if norm.warmup_updates:
        return None
    if not norm.training:
        root = (norm.running_var + norm.eps).sqrt()
        return infer(
            norm, x, ops, 0, norm.eps, root, norm.running_mean, to_statistics_dtype(norm.eta, x)
        )
    batch = RepBatch(to_statistics_dtype(norm.eta, x).detach(), ops, valid, 0, norm.eps, norm.sync)
    y = column_norm(norm, x, batch, norm.eta)
    norm.move_running(batch.mean, batch.variance, batch.count, ops.move)
    return y
