"""BatchNorm (Ioffe and Szegedy 2015, Algorithm 1 and 2) over the positions of a batch.

Per channel, over the set V of the n real positions:

    mu_B      = (1/n) sum_V x
    sigma_B^2 = (1/n) sum_V (x - mu_B)^2                       (biased)
    x_hat     = (x - mu_B) / sqrt(sigma_B^2 + eps)             y = gamma * x_hat + beta

with the exact gradient through both. Inference uses the running mean and variance,

    running <- (1 - m) running + m batch                       (from 0 and 1)

where m is ``momentum`` as in torch: the weight of the new value. BatchNorm is the baseline of the
PowerNorm paper (Shen et al. 2020), so the defaults are that paper's for a Transformer: the input is
pre-scaled by its RMS (see ``base/rms_prescale.py``), workers are synchronized, and m is 0.05, as in
the released code. There is no warm-up: that paper's warm-up delays the use of running statistics in
training, and BatchNorm never uses them in training.

Differences from Ioffe and Szegedy and from torch: the running variance is the biased one, so that a
batch seen again in inference gives the same output as in training.

``variant=released`` is the baseline in the code released with PowerNorm. It fills padding with mu_B
and divides the sum of the variance by the number N of all positions, so its variance is n/N times
sigma_B^2 above. Workers are never synchronized. Checked against that code: the gradient is the
exact one of this forward pass, and the running variance is torch's unbiased one over all N
positions, N/(N - 1) times the variance of the batch.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from norm_plugin.norms.base.contract import InferenceAffine
from norm_plugin.norms.base.means import masked_means, zero_padding
from norm_plugin.norms.base.registry import register_norm, register_released
from norm_plugin.norms.base.rms_prescale import (
    check_rms_prescale,
    refuse_rms_prescale,
    rms_prescale,
)
from norm_plugin.norms.base.running_moments import RunningMomentsNorm
from norm_plugin.norms.base.workers import Sync


class Standardized(NamedTuple):
    """A standardized batch; all fields but ``positions`` carry gradients.

    Attributes:
        x_hat: (..., C), 0 at padding.
        mean: (C,).
        variance: (C,), without eps.
        positions: (), the number n of real positions.
    """

    x_hat: Tensor
    mean: Tensor
    variance: Tensor
    positions: Tensor


def batch_norm(
    x: Tensor,
    valid: Tensor | None,
    eps: float,
    sync: Sync = False,
    over_padding: bool = False,
) -> Standardized:
    """Compute (x - mu_B) / sqrt(sigma_B^2 + eps) with its exact gradient.

    Args:
        x: (..., C).
        valid: bool (...), True at real positions; None: every position is real.
        eps: added to the variance, inside the root.
        sync: take the statistics over the real positions of all workers.
        over_padding: divide the sum of the variance by the number of all positions, not by n.
    """
    (mean,), count = masked_means([x], valid, sync)
    centered = zero_padding(x - mean, valid)
    (variance,), _ = masked_means([centered.square()], valid, sync)
    if over_padding:
        variance = variance * (count / max(x.numel() // max(x.size(-1), 1), 1))
    return Standardized(centered * torch.rsqrt(variance + eps), mean, variance, count)


@register_norm(
    "batchnorm",
    formula="gamma * (x - mu_B) / sigma_B + beta,  mu_B, sigma_B over positions",
    paper="Ioffe and Szegedy 2015, Algorithm 1 and 2; baseline of Shen et al. 2020",
    released=(
        "padding filled with the mean, n/N of the variance, no sync; that is `variant=released`"
    ),
)
class BatchNorm(RunningMomentsNorm):
    """Standardize each channel by its mean and variance over the positions of the batch.

    Options:
        eps: added inside the root, against division by zero
        momentum: weight of the new value in the running mean and variance, as in torch
        layer_scale_groups: RMS pre-scaling of the input: 0 none, 1 over all channels (the
            paper), G over G groups of channels
        sync: take statistics over the positions of all workers; no effect with variant=released
    """

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.05,
        layer_scale_groups: int = 1,
        sync: Literal["on", "off"] = "on",
    ) -> None:
        super().__init__(dim, eps, momentum, sync=sync)
        check_rms_prescale(layer_scale_groups, dim)
        self.layer_scale_groups = layer_scale_groups

    def statistics_input(self, x: Tensor) -> Tensor:
        return rms_prescale(x, self.layer_scale_groups, self.eps)

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if self.training:  # before the pre-scaling: 0 times its infinite slope would be NaN
            x = zero_padding(x, valid)
        x = self.statistics_input(x)
        if not self.training:
            return self.affine(self.standardize_by_running(x))
        return self.affine(self.standardize_batch(x, valid))

    def standardize_batch(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return x_hat of a training forward, (..., C), and update the running statistics."""
        batch = batch_norm(x, valid, self.eps, self.sync)
        self.update_running(batch.mean, batch.variance, batch.positions)
        return batch.x_hat

    def inference_map(self) -> InferenceAffine:
        refuse_rms_prescale(self.layer_scale_groups)
        return super().inference_map()


@register_released(
    "batchnorm", help="the paper's form, or that of the code released with PowerNorm"
)
class ReleasedBatchNorm(BatchNorm):
    """BatchNorm as the code released with PowerNorm computes it, on each worker by itself."""

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim, **{**options, "sync": "off"})

    def standardize_batch(self, x: Tensor, valid: Tensor | None) -> Tensor:
        batch = batch_norm(x, valid, self.eps, over_padding=True)
        rows = x.numel() // self.dim
        unbiased = batch.variance * (rows / max(rows - 1, 1))  # over all N positions
        self.update_running(batch.mean, unbiased, batch.positions)
        return batch.x_hat
