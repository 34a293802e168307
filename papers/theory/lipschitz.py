"""The gradient through PowerNorm.

Shen et al. 2020 (PowerNorm), Lemma 1. Under PN-V, with `g = dL/dx_hat` and lengths over the n
positions of a channel, `|dL/dx|^2 = (|g|^2 - <g, x_hat>^2 / n) / psi_B^2`, which is at most
`|g|^2 / psi_B^2`. PN divides by the running psi instead of psi_B, and subtracts `nu x_hat`
instead of `mean(g x_hat) x_hat`. The paper does not bound its share `|dL/dx|^2 psi^2 / |g|^2`.

The lemma compares PN-V with the network without norms. The abstract compares it with batch
normalization, which no lemma or theorem does. In one batch, either gradient may be shorter: psi_B
is at least sigma_B, but batch normalization also removes the mean of g.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from norm_plugin.norms import Norm, build_norm
from papers.theory.claim import ROUNDING, Options, Row, cases, verdict
from papers.theory.models import Activations, through_norm

CASE = ("placement", "norm", "tokens")

EXACT, APPROXIMATE, BATCH_NORM = "powernorm-v", "powernorm", "batchnorm"
EPOCHS = 5
"""The number of passes of PN over the batches, so that its running statistics settle."""


@dataclass(frozen=True)
class InputGradient:
    """The gradient by the input of a norm, for each channel; (C,) each.

    Attributes:
        share: |dL/dx|^2 psi^2 / |g|^2.
        by_identity: 1 - <g, x_hat>^2 / (n |g|^2), the share by Lemma 1.
        ratio: |dL/dx| divided by that of batch normalization with the same x and g.
    """

    share: Tensor
    by_identity: Tensor
    ratio: Tensor


def running_norm(dim: int) -> Norm:
    """Return PN that uses running statistics from its first batch on, in float64."""
    return build_norm(APPROXIMATE, dim, layer_scale_groups=0, warmup_updates=0).double().train()


def exact_gradient(x: Tensor, g: Tensor) -> InputGradient:
    """Return the gradient of PN-V with gamma = 1, eps = 0 and no pre-scaling. x, g: (n, C)."""
    return _gradient(_batch_norm(EXACT, x.size(-1)), x, g, psi2=x.square().mean(dim=0))


def running_gradients(batches: Sequence[Activations], epochs: int = EPOCHS) -> list[InputGradient]:
    """Return the gradients of PN with gamma = 1 in the last of its epochs over these batches."""
    norm: Any = running_norm(batches[0].x.size(-1))
    for at in (*batches,) * (epochs - 1):
        through_norm(norm, at.x, at.g)
    return [_gradient(norm, at.x, at.g, psi2=norm.psi2 + norm.eps) for at in batches]


def _batch_norm(name: str, dim: int) -> Norm:
    """Return a norm with the statistics of the batch, in float64, with eps = 0, not pre-scaled."""
    return build_norm(name, dim, layer_scale_groups=0, eps=0.0).double().train()


def _gradient(norm: Norm, x: Tensor, g: Tensor, psi2: Tensor) -> InputGradient:
    dx, x_hat = through_norm(norm, x, g)
    of_batch_norm, _ = through_norm(_batch_norm(BATCH_NORM, x.size(-1)), x, g)
    length = g.square().sum(dim=0)
    product = (g * x_hat).sum(dim=0)
    return InputGradient(
        share=dx.square().sum(dim=0) * psi2 / length,
        by_identity=1 - product.square() / (x.size(0) * length),
        ratio=dx.norm(dim=0) / of_batch_norm.norm(dim=0),
    )


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure both norms at each norm of the encoder of a full model, for main placements only."""
    for where, at_site in options.activations_by_site(placement):
        exact = [exact_gradient(at.x, at.g) for at in at_site]
        for norm, gradients in {EXACT: exact, APPROXIMATE: running_gradients(at_site)}.items():
            for batch, at in enumerate(gradients):
                yield {
                    **where,
                    "batch": batch,
                    "norm": norm,
                    "identity_error": float((at.share - at.by_identity).abs().max()),
                    "least_share": float(at.share.min()),
                    "mean_share": float(at.share.mean()),
                    "largest_share": float(at.share.max()),
                    "channels_above": float((at.share > 1 + ROUNDING).double().mean()),
                    "least_ratio": float(at.ratio.min()),
                    "mean_ratio": float(at.ratio.mean()),
                    "largest_ratio": float(at.ratio.max()),
                    "channels_longer": float((at.ratio > 1 + ROUNDING).double().mean()),
                }


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether PN-V's identity and bound hold, and how far PN exceeds the bound."""
    for row, some in cases(frame, "norm", "tokens"):
        largest, error = some["largest_share"].max(), some["identity_error"].max()
        bound = verdict("-", f"{largest:.4f} at most", None)
        if row["norm"] == EXACT:
            yield {**row, **verdict("the identity", f"off by {error:.1e}", error <= ROUNDING)}
            bound = verdict("share <= 1", f"{largest:.4f} at most", largest <= 1 + ROUNDING)
        yield {
            **row,
            **bound,
            "mean share": f"{some['mean_share'].mean():.4f}",
            "channels and batches above 1": f"{some['channels_above'].mean():.1%}",
            "mean ratio to BN": f"{some['mean_ratio'].mean():.4f}",
            "longer than BN's": f"{some['channels_longer'].mean():.1%}",
        }


def tables(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the ranges of the share and of the ratio to batch normalization, by placement."""
    by = ["norm", "tokens", "placement"]
    ranges = frame.groupby(by, sort=False).agg(
        **{"least share": ("least_share", "min"), "largest share": ("largest_share", "max")},
        **{"least ratio to BN": ("least_ratio", "min"), "largest": ("largest_ratio", "max")},
    )
    return [ranges.map("{:.4f}".format).reset_index()]
