"""PowerNorm as its released code computes it: ``--norm-type powernorm --norm-variant released``.

Per channel, at forward t = 1, 2, ... with a warm-up of W, over the n real positions V and all
N positions, padding included:

    forward     psi_B^2 = (1/n) sum_V x^2
                x_hat   = x / psi_B  for t <= W,    x / psi_{t-1}  later
                psi^2   <- ((t - 1) psi^2 + psi_B^2) / t          only for t < W, and then also
                psi^2   <- a_f psi^2 + (1 - a_f) psi_B^2
                y       = gamma * x_hat + beta
    backward    g       = gamma * dL/dy
                dL/dx   = (g - nu_{t-1} x_hat) / psi_B            during the warm-up and after
                nu_t    = nu_{t-1} (1 - (1 - a_b) Gamma) + (1 - a_b) Lambda
                Gamma   = (1/N) sum x_hat^2,    Lambda = (1/N) sum g x_hat

each psi with eps inside its root. Differences from the paper: the gradient uses the batch's psi_B
after the warm-up, too; Gamma and Lambda include padding; the gradient is approximate during the
warm-up, too; during the warm-up psi^2 is updated twice; and t counts forwards, whatever the trainer
reports. The released code stores nu / (1 - a_b), which is the same recursion. It fixes
a_f = a_b = 0.9, pre-scales the input over as many groups as there are attention heads, and gives
the norm after the encoder a warm-up of 1000 forwards, whatever the others have. In a Transformer
this variant does the same, unless ``--norm-layer-scale-groups`` is given. Workers are never
synchronized. The recursion of nu is the paper's; see ``power_norm.py``.

Beyond these formulas: a batch without a real position is divided by psi and updates nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.norms.base.means import finite_or, masked_means
from norm_plugin.norms.base.registry import register_released
from norm_plugin.norms.power_norm import PowerNorm, RunningPowerNorm

WARMUP_AFTER_ENCODER = 1000


@register_released("powernorm", help="the paper's form, or that of its released code")
class ReleasedPowerNorm(PowerNorm):
    """PowerNorm as the released code computes it, on each worker by itself."""

    counts_forwards = True

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim, **{**options, "sync": "off"})

    @classmethod
    def transformer_options(
        cls, options: dict[str, Any], heads: int, after_encoder: bool
    ) -> dict[str, Any]:
        """Set the groups and the warm-up that the released code fixes."""
        fixed = {"warmup_updates": WARMUP_AFTER_ENCODER} if after_encoder else {}
        return {"layer_scale_groups": heads, **options, **fixed}

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if not self.training:
            return super().normalize(x, valid)
        return self.affine(self.divide(self.statistics_input(x), valid))  # padding is not masked

    def divide(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return x_hat of a training forward, (..., C). x: (..., C), padding included."""
        (psi2_batch,), count = masked_means([x.detach().square()], valid)
        t, in_warmup, psi2 = self.pre_batch_state()
        some = count > 0
        psi2_batch = torch.where(some, psi2_batch.to(psi2.dtype), psi2)
        psi_batch = self.root(psi2_batch, x)
        psi = psi_batch if in_warmup else self.root(psi2, x)
        recursion = self.recursion(None, (1 - self.alpha_bwd) * some.to(x.dtype))
        x_hat: Tensor = RunningPowerNorm.apply(x, psi, psi_batch, recursion)
        share = self.released_share(t)
        if share is not None:  # else a recomputed forward, which updates nothing
            new = torch.where(some, psi2.lerp(psi2_batch, share), psi2)
            self.psi2.copy_(finite_or(new, psi2))
        return x_hat

    def released_share(self, t: int) -> float | None:
        """Return the weight of psi_B^2 in psi^2 at forward ``t``; None: a recomputed forward.

        The two updates of the warm-up keep (t - 1)/t and a_f of psi^2, one after the other.
        """
        share = self.share_of_batch(1 - self.alpha_fwd)
        twice = t < self.warmup_updates and self.averaged_forwards is None
        return share + (1 - share) / t if share is not None and twice else share
