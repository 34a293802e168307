"""PN-V (Shen et al. 2020, "PowerNorm: Rethinking Batch Normalization in Transformers").

Definition 1, per channel, over the set V of the n real positions:

    psi_B^2 = (1/n) sum_V x^2
    x_hat   = x / psi_B                     y = gamma * x_hat + beta
    dL/dx   = (g - x_hat mean_V(g x_hat)) / psi_B        with g = gamma * dL/dy

This is BatchNorm with the quadratic mean in place of mean and variance, and with the exact
gradient through psi_B. Inference divides by the running psi^2 <- a_f psi^2 + (1 - a_f) psi_B^2,
which starts at 1, as in PN. In every Transformer of the paper the input is pre-scaled by its RMS,
as by default here. There is no warm-up: the paper's delays the use of running statistics in
training, and PN-V never uses them in training. Workers are synchronized, as in the paper.

Differences from the paper: eps is added inside the root of psi^2. Definition 1 does not cover
inference, so a_f is taken from PN. PN-V was never released.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from norm_plugin.norms.base.contract import InferenceAffine
from norm_plugin.norms.base.means import check_share, masked_means, zero_padding
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.base.rms_prescale import (
    check_rms_prescale,
    refuse_rms_prescale,
    rms_prescale,
)
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from norm_plugin.norms.base.workers import Sync


def power_norm_v(
    x: Tensor, valid: Tensor | None, eps: float, sync: Sync = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x / psi_B with its exact gradient, psi_B^2, (C,), and n, (). x: (..., C)."""
    x = zero_padding(x, valid)
    (psi2,), count = masked_means([x.square()], valid, sync)
    return x * torch.rsqrt(psi2 + eps), psi2.detach(), count


@register_norm(
    "powernorm-v",
    formula="gamma * x / psi_B + beta,  psi_B^2 = mean of x^2 over positions",
    paper="Shen et al. 2020, Definition 1",
    released="never released",
)
class PowerNormV(BatchStatisticsNorm):
    """Divide by the quadratic mean over the positions of the batch.

    Options:
        eps: added inside the root, against division by zero
        alpha_fwd: a_f, the share of the running psi^2 that each forward keeps; inference uses it
        layer_scale_groups: RMS pre-scaling of the input: 0 none, 1 over all channels (the
            paper), G over G groups of channels
        sync: take statistics over the positions of all workers
    """

    forward_updated_buffers: ClassVar[tuple[str, ...]] = ("psi2",)
    running_buffers: ClassVar[Mapping[str, str]] = {"square": "psi2"}
    psi2: Tensor

    def __init__(
        self,
        dim: int,
        warmup_updates: int = 0,
        *,
        eps: float = 1e-5,
        alpha_fwd: float = 0.9,
        layer_scale_groups: int = 1,
        sync: Literal["on", "off"] = "on",
    ) -> None:
        super().__init__(dim, warmup_updates=warmup_updates, sync=sync)
        check_share("alpha_fwd", alpha_fwd)
        check_rms_prescale(layer_scale_groups, dim)
        self.eps, self.alpha_fwd, self.layer_scale_groups = eps, alpha_fwd, layer_scale_groups
        self.register_buffer("psi2", torch.ones(dim))

    def statistics_input(self, x: Tensor) -> Tensor:
        return rms_prescale(x, self.layer_scale_groups, self.eps)

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if self.training:  # before the pre-scaling: 0 times its infinite slope would be NaN
            x = zero_padding(x, valid)
        x = self.statistics_input(x)
        if not self.training:
            return self.affine(x / self.root(self.psi2, x))
        return self.affine(self.divide(x, valid))

    def divide(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return x_hat of a training forward, (..., C), and update psi^2.

        Args:
            x: (..., C), pre-scaled, 0 at padding.
        """
        x_hat, psi2_batch, count = power_norm_v(x, valid, self.eps, self.sync)
        self.update_running(psi2_batch, count)
        return x_hat

    def root(self, psi2: Tensor, x: Tensor) -> Tensor:
        """Return psi = sqrt(psi^2 + eps), (C,), in the dtype of ``x``."""
        return (psi2 + self.eps).sqrt().to(x.dtype)

    def inference_map(self) -> InferenceAffine:
        refuse_rms_prescale(self.layer_scale_groups)
        return self.channel_map(self.psi2, self.eps)

    def update_running(self, psi2_batch: Tensor, count: Tensor) -> None:
        """Update the running psi^2 by psi_B^2, (C,), of n = ``count`` positions."""
        self.update_running_statistic(self.psi2, psi2_batch, 1 - self.alpha_fwd, count)
