"""Regularized BatchNorm (Wang, Wu and Huang 2022, "Understanding the Failure of Batch
Normalization for Transformers in NLP", RBN).

BatchNorm, and for each such layer a penalty on the distance of its batch statistics, which
training uses, from its running statistics, which inference uses:

    L' = L + lambda_mu |mu_B - mu|^2 + lambda_sigma |sigma_B - sigma|^2

summed over channels; mu and sigma, the running mean and deviation before this batch, are
constants. eps is inside the root of both deviations.

The penalty reaches the loss without a term in it: its exact gradient joins the backward pass at
this layer. ``loss_reduction`` says what loss that is. With ``sum``, fairseq's, L is summed over
tokens and the trainer divides the gradient by their number, so the penalty is multiplied by the
number n of positions, and the division leaves about what the formula says, also over several
micro-batches and workers. With ``mean`` it is added as it stands. Where the loss is multiplied
before its backward pass, so is the penalty: see ``BatchStatisticsNorm.loss_scale``.

Assumed, since the paper could not be read: squared Euclidean distances of means and of standard
deviations, as a public implementation of the paper has them, and running statistics of before
the batch. The strengths default to 0.1 and 0.01, which the notes to the released code give for
a pre-norm Transformer on IWSLT14 (60 and 0 for post-norm); the released code itself was not
consulted, so its scale of them may differ. No layer-scale comes first.

In training padded positions are 0 before gamma and beta. Everything is computed and stored in
float32 at least; the cast back comes after gamma and beta.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Optional, Tuple

import torch
from torch import Tensor

from norm_plugin.norms._registry import register_norm
from norm_plugin.norms._statistics import Move, in_backward, move
from norm_plugin.norms._workers import worker_count
from norm_plugin.norms.batch_norm import RunningMomentsNorm, batch_norm


class AddPenalty(torch.autograd.Function):
    """y, unchanged; its backward pass is that of a loss with ``weight * penalty`` added."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, penalty: Tensor, weight: Tensor) -> Tensor:
        """y: any shape; penalty, weight: ()."""
        ctx.save_for_backward(weight)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tuple[Optional[Tensor], ...]:
        """The penalty's own gradient comes from autograd."""
        (weight,) = ctx.saved_tensors
        return g, weight, None


def distance_penalty(
    batch_mean: Tensor,
    batch_variance: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    lambda_mean: float,
    lambda_std: float,
) -> Tensor:
    """lambda_mu |mu_B - mu|^2 + lambda_sigma |sigma_B - sigma|^2, (), of statistics (C,)."""
    of_means = (batch_mean - mean).square().sum()
    deviation, running = (batch_variance + eps).sqrt(), (variance + eps).sqrt()
    return lambda_mean * of_means + lambda_std * (deviation - running).square().sum()


@register_norm(
    "regularized-batchnorm",
    formula="batchnorm;  loss + lambda_mu (mu_B - mu)^2 + lambda_sigma (sigma_B - sigma)^2",
    paper="Wang et al. 2022, RBN",
    released="code not consulted",
)
class RegularizedBatchNorm(RunningMomentsNorm):
    """BatchNorm that keeps batch and running statistics together.

    Options:
        eps: added to the variances, inside the root
        momentum: weight of the new value in the running mean and variance, as in torch
        lambda_mean: strength of the penalty on the distance of the means
        lambda_std: strength of the penalty on the distance of the standard deviations
        loss_reduction: whether the loss of the run is a sum over tokens, as in fairseq, or a
            mean
        sync: statistics over the positions of all workers
    """

    exact_gradient: ClassVar[bool] = False

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        lambda_mean: float = 0.1,
        lambda_std: float = 0.01,
        loss_reduction: Literal["sum", "mean"] = "sum",
        sync: Literal["on", "off"] = "on",
    ) -> None:
        super().__init__(dim, eps, momentum, sync=sync)
        for name, strength in (("lambda_mean", lambda_mean), ("lambda_std", lambda_std)):
            if not (math.isfinite(strength) and strength >= 0):
                raise ValueError(f"{name} is {strength}; it must be 0 or more, and finite")
        self.lambda_mean, self.lambda_std = lambda_mean, lambda_std
        self.loss_reduction = loss_reduction

    def normalize(self, x: Tensor, valid: Optional[Tensor]) -> Tensor:
        if not self.training:
            return self.affine(self.standardize_by_running(x))
        batch = batch_norm(x, valid, self.eps, self.sync)
        self.see_and_move(batch.mean, batch.variance, batch.positions)
        penalty = self.penalty(batch.mean, batch.variance)
        weight = self.penalty_weight(batch.positions)
        return self.affine(AddPenalty.apply(batch.x_hat, penalty, weight))

    def see_and_move(
        self, mean: Tensor, variance: Tensor, positions: Tensor, move: Move = move
    ) -> None:
        """:meth:`move_running`; what was there before is kept for the penalty.

        Activation checkpointing must repeat what the forward saw that it computes again.
        """
        if not in_backward():
            self._seen = (self.running_mean.clone(), self.running_var.clone())
        self.move_running(mean, variance, positions, move)

    def penalty(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The penalty on a batch's mean and variance, (C,) each: ()."""
        seen_mean, seen_variance = (one.to(mean.dtype) for one in self._seen)
        return distance_penalty(
            mean,
            variance,
            seen_mean,
            seen_variance,
            self.eps,
            self.lambda_mean,
            self.lambda_std,
        )

    def penalty_weight(self, positions: Tensor) -> Tensor:
        """What the penalty counts beside the loss of this worker, (), for n positions, ()."""
        weight = (positions > 0) * torch.ones_like(positions) * self.loss_scale
        if self.loss_reduction == "sum":
            # Every worker adds its share, and the gradient of synced statistics sums them
            weight = weight * positions / (worker_count() if self.sync else 1)
        return weight
