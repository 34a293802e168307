"""RepBN and its progressive form (Guo et al. 2024, "SLAB: Efficient Transformers with Simplified
Linear Attention and Progressive Re-parameterized Batch Normalization", PRepBN).

    RepBN(x)  = BN(x) + eta x                            eta learned, one number, from 1
    PRepBN(x) = lambda LN(x) + (1 - lambda) RepBN(x),    lambda = max(0, 1 - t / T)

at optimizer update t = 0, 1, ... T is ``blend_updates``; with T = 0 it is RepBN from the start. LN
has its own gamma and beta, which exist only if T > 0. In inference RepBN is one affine map.

The paper could not be read. The formulas and the start of eta are those of its released code.
Differences from that code: it blends in training only, and uses RepBN alone in inference. Here
inference blends too, so that a checkpoint from before T is validated as it was trained. t counts
optimizer updates, not forwards. The code's initial phase with LN alone, 0 steps by default, is left
out. The running variance is biased, as in ``batchnorm``.

In training padded positions give BN(x) = beta and eta x = 0.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from norm_plugin.norms.base.contract import CannotFold, InferenceAffine
from norm_plugin.norms.base.means import zero_padding
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.base.running_moments import RunningMomentsNorm
from norm_plugin.norms.batch_norm import batch_norm


@register_norm(
    "repbn",
    formula="lambda LN(x) + (1 - lambda) (BN(x) + eta x),  lambda from 1 to 0, or 0",
    paper="Guo et al. 2024, RepBN and PRepBN",
    released="RepBN alone in inference, even during the blend; counts forwards",
    paper_read=False,
)
class RepBatchNorm(RunningMomentsNorm):
    """BatchNorm plus a learned multiple of its input, gradually replacing LayerNorm.

    Options:
        eps: added inside the root, against division by zero
        momentum: weight of the new value in the running mean and variance, as in torch
        blend_updates: T, optimizer updates over which LayerNorm fades out; 0: no LayerNorm
        sync: take statistics over the positions of all workers
    """

    bounded = False  # eta x grows with x

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        blend_updates: int = 0,
        sync: Literal["on", "off"] = "on",
    ) -> None:
        if blend_updates < 0:
            raise ValueError(f"blend_updates is {blend_updates}; it must be 0 or more")
        super().__init__(dim, eps, momentum, warmup_updates=blend_updates, sync=sync)
        self.eta = nn.Parameter(torch.ones(1))
        if blend_updates:
            self.ln_weight = nn.Parameter(torch.ones(dim))
            self.ln_bias = nn.Parameter(torch.zeros(dim))

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if not self.training:
            return self._blend(x, self.standardize_by_running(x), self._layer_norm_share())
        share = self.compute_once_per_forward(self._layer_norm_share)
        x = zero_padding(x, valid)
        batch = batch_norm(x, valid, self.eps, self.sync)
        self.update_running(batch.mean, batch.variance, batch.positions)
        return self._blend(x, batch.x_hat, share)

    def inference_map(self) -> InferenceAffine:
        if self._layer_norm_share():
            raise CannotFold(
                f"LayerNorm contributes until update {self.warmup_updates}, and this is update "
                f"{self.updates_counted}"
            )
        batch_norm_map = super().inference_map()
        return batch_norm_map._replace(gain=batch_norm_map.gain + self.eta.detach().double())

    def _layer_norm_share(self) -> float | Tensor:
        """Return lambda; a tensor while ``torch.compile`` traces, when the count is no constant."""
        if not self.warmup_updates:
            return 0.0
        if torch.compiler.is_compiling():
            return (1 - self.num_updates.double() / self.warmup_updates).clamp(min=0)
        return max(0.0, 1 - self.updates_counted / self.warmup_updates)

    def _blend(self, x: Tensor, x_hat: Tensor, share: float | Tensor) -> Tensor:
        """Return PRepBN of ``x``, given its standardized form ``x_hat`` and lambda = ``share``."""
        rep = self.affine(x_hat) + self.eta.to(x.dtype) * x
        if not self.warmup_updates:
            return rep
        weight, bias = self.ln_weight.to(x.dtype), self.ln_bias.to(x.dtype)
        # A share of 0 keeps ln_weight in the graph: DDP expects a gradient for each parameter
        return share * F.layer_norm(x, (self.dim,), weight, bias, self.eps) + (1 - share) * rep
