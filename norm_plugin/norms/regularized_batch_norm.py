"""Regularized BatchNorm (Wang, Wu and Huang 2022, "Understanding the Failure of Batch
Normalization for Transformers in NLP", RBN).

BatchNorm with a penalty in each such layer on the distance between its batch statistics, which
training uses, and its running statistics, which inference uses. The paper's results on IWSLT14 were
made with ``distance=variances``, the default:

    L' = L + lambda_mu |mu_B - mu|^2 + lambda_sigma |sigma_B^2 - sigma^2|_1

summed over channels. mu and sigma^2 are the running statistics after this batch has updated them,
so only 1 - m of the distance is left. The same code has ``distance=deviations``, the penalty

    L' = L + lambda_mu |mu_B - mu|^2 + lambda_sigma |sigma_B - sigma|^2

with the running statistics before the batch. Running statistics are constants for the gradient.

The paper could not be read. Checked against its released code (wjxts/RegularizedBN, fairseq 0.9):
its criterion adds the penalties of all layers once to the loss of a batch, which is a sum over
tokens, and the trainer divides the gradient by the number of tokens. Here it is the same
(``penalty_per=batch``). Its commands for IWSLT14 De-En use 0.1 and 0.01 for the pre-norm
Transformer, the defaults here, and 60 and 0 for post-norm, with m = 0.05 and a biased running
variance. ``penalty_per=token`` multiplies the penalty by the number n of positions, so that its
share of the loss does not depend on the batch size. It needs other strengths: with 4,096 tokens
the penalty is 4,096 times as large.

That penalty joins a loss that is the sum over positions (``loss=sum``). Where the loss is their
mean (``loss=mean``), as it is in most code outside fairseq, the penalty is divided by n too, so
that its share of the gradient is the same:

    L / n + penalty / n        n: the positions per worker, as workers average their gradients

A norm does not see by what else a loss is divided. If N backward passes per update each have the
loss divided by N, :func:`set_accumulation` divides the penalty too. If the mean is not over the
positions that this norm has, as that over sentences or masked words, ``loss=sum`` and
``set_loss_scale(model, 1 / terms)`` give the exact share.

Differences from the released code: the variance is computed from x - mu_B, not from sums of
squares. eps is added to it; there eps is its lower bound. Workers are synchronized by default;
there each worker has its own statistics and penalty.
``distance=deviations`` there uses the running statistics after the batch, without eps in its
roots.

The penalty adds no term to the loss. Its exact gradient joins the backward pass at this layer,
once per forward of a worker; synchronized workers add it once in total. If the loss is multiplied
before its backward pass, so is the penalty: see ``BatchStatisticsNorm.loss_scale``. The input is
not pre-scaled.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.base.running_moments import RunningMomentsNorm
from norm_plugin.norms.base.workers import worker_count
from norm_plugin.norms.batch_norm import batch_norm


class Moments(NamedTuple):
    """A mean and a variance, (C,) each."""

    mean: Tensor
    variance: Tensor


class AddPenalty(torch.autograd.Function):
    """Return y unchanged; the backward pass is that of a loss with ``weight * penalty`` added."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor,
        penalty_gradient: Callable[[Tensor, Tensor], Moments],
        loss_scale: Callable[[], float | Tensor],
    ) -> Tensor:
        """Return y, of any shape.

        Args:
            mean, variance: (C,), those of the batch, which get the gradient of the penalty.
            weight: (), the weight of the penalty in the loss.
            penalty_gradient: returns the gradient of the penalty from ``mean`` and ``variance``.
            loss_scale: returns the loss scale.
        """
        ctx.save_for_backward(mean, variance, weight)
        ctx.penalty_gradient, ctx.loss_scale = penalty_gradient, loss_scale
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Pass ``g`` through, and send the weighted gradient of the penalty to the statistics."""
        mean, variance, weight = ctx.saved_tensors
        gradient = ctx.penalty_gradient(mean, variance)
        factor = weight * ctx.loss_scale()
        return g, factor * gradient.mean, factor * gradient.variance, None, None, None


@register_norm(
    "regularized-batchnorm",
    formula="batchnorm;  loss + lambda_mu (mu_B - mu)^2 + lambda_sigma abs(sigma_B^2 - sigma^2)",
    paper="Wang et al. 2022, RBN",
    released="never synchronized, eps as the lower bound of the variance",
    paper_read=False,
)
class RegularizedBatchNorm(RunningMomentsNorm):
    """BatchNorm with a penalty on the distance between batch and running statistics.

    Options:
        eps: added inside the root, against division by zero
        momentum: weight of the new value in the running mean and variance, as in torch
        lambda_mean: strength of the penalty on the distance between the means
        lambda_std: strength of the penalty on the distance between the variances or deviations
        distance: variances (absolute differences, running statistics after the batch, as in the
            released code) or deviations (squared differences, running statistics before the batch)
        penalty_per: add the penalty once per batch, as the released code does, or once per token
        loss: whether the loss is the mean over positions or their sum, which the penalty is added
            to; auto: the sum under fairseq, else the mean
        sync: take statistics over the positions of all workers
    """

    exact_gradient: ClassVar[bool] = False

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.05,
        lambda_mean: float = 0.1,
        lambda_std: float = 0.01,
        distance: Literal["variances", "deviations"] = "variances",
        penalty_per: Literal["batch", "token"] = "batch",
        loss: Literal["auto", "mean", "sum"] = "auto",
        sync: Literal["on", "off"] = "on",
    ) -> None:
        super().__init__(dim, eps, momentum, sync=sync)
        for name, strength in (("lambda_mean", lambda_mean), ("lambda_std", lambda_std)):
            if not (math.isfinite(strength) and strength >= 0):
                raise ValueError(f"{name} is {strength}; it must be 0 or more, and finite")
        self.lambda_mean, self.lambda_std = lambda_mean, lambda_std
        self.distance, self.penalty_per, self.loss = distance, penalty_per, loss
        self._passes, self._last_pass = 0, -1  # backward passes since the last optimizer step

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if not self.training:
            return self.affine(self.standardize_by_running(x))
        batch = batch_norm(x, valid, self.eps, self.sync)
        running = self.update_and_compare(batch.mean, batch.variance, batch.positions)
        x_hat = AddPenalty.apply(
            *(batch.x_hat, batch.mean, batch.variance, self.penalty_weight(batch.positions)),
            *(partial(self.penalty_gradient, running=running), self.loss_scale_later()),
        )
        return self.affine(x_hat)

    def update_and_compare(self, mean: Tensor, variance: Tensor, positions: Tensor) -> Moments:
        """Call :meth:`update_running`; return the running statistics that the penalty uses."""

        def updated() -> Moments:
            before = Moments(self.running_mean.clone(), self.running_var.clone())
            self.update_running(mean, variance, positions)
            after = Moments(self.running_mean.clone(), self.running_var.clone())
            return after if self.distance == "variances" else before

        return self.compute_once_per_forward(updated)

    def penalty_gradient(self, mean: Tensor, variance: Tensor, running: Moments) -> Moments:
        """Return the gradient of the penalty by the mean and the variance of a batch, (C,) each.

        It is 2 lambda_mu (mu_B - mu), and lambda_sigma sign(sigma_B^2 - sigma^2), or for deviations
        lambda_sigma (1 - sigma / sigma_B), since d sigma_B / d sigma_B^2 = 1 / (2 sigma_B).

        Args:
            running: the statistics that they are compared with.
        """
        running_mean, running_variance = (each.to(mean.dtype) for each in running)
        if self.distance == "variances":
            slope = (variance - running_variance).sign()
        else:  # eps is added inside both roots
            slope = 1 - ((running_variance + self.eps) / (variance + self.eps)).sqrt()
        return Moments(2 * self.lambda_mean * (mean - running_mean), self.lambda_std * slope)

    def penalty_weight(self, positions: Tensor) -> Tensor:
        """Return the weight of the penalty in the loss of this worker, (). positions: n, ()."""
        weight = (positions > 0) * torch.ones_like(positions)
        if self.penalty_per == "token":
            weight = weight * positions
        # Each synchronized worker adds its share, and the gradient of their statistics sums them
        return weight * self.term_weight(positions) / worker_count(self.sync)

    @property
    def takes_mean(self) -> bool:
        """Whether the loss is a mean over positions; else it is their sum."""
        return self.loss == "mean" or (self.loss == "auto" and not self.loss_is_summed)

    def term_weight(self, positions: Tensor) -> float | Tensor:
        """Return the weight of the loss of one position in the loss of this worker, a number or ().

        It is 1 in a sum, and in a mean 1 over the positions of a worker: where workers are
        synchronized, n are those of all of them. positions: n, ().
        """
        if not self.takes_mean:
            return 1.0
        workers = worker_count(self.sync)
        return workers / self.group_count / positions.clamp(min=1)

    def loss_scale_later(self) -> Callable[[], float | Tensor]:
        return partial(self._loss_scale_of_pass, super().loss_scale_later())

    def _loss_scale_of_pass(self, loss_scale: Callable[[], float | Tensor]) -> float | Tensor:
        running = torch._C._current_graph_task_id()
        if running != self._last_pass:
            self._passes, self._last_pass = self._passes + 1, running
        return loss_scale()

    def count_step(self, parameters: set[str]) -> None:
        passes, self._passes = self._passes, 0
        if passes > 1 and self.takes_mean and self.accumulation is None:
            warnings.warn(
                f"{passes} backward passes added up gradients before this step of the optimizer. "
                f"If each loss was divided by {passes}, the penalty of regularized-batchnorm is "
                f"{passes} times too large: call norm_plugin.norms.set_accumulation(model, "
                f"{passes}) before training; if not, call set_accumulation(model, 1)",
                stacklevel=2,
            )
        super().count_step(parameters)
