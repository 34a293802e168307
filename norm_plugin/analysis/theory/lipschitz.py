"""The gradient through PowerNorm.

Shen et al. 2020 (PowerNorm), Lemma 1. Under PN-V, with `g = dL/dx_hat` and lengths over the n
positions of a channel, `|dL/dx|^2 = (|g|^2 - <g, x_hat>^2 / n) / psi_B^2`, which is at most
`|g|^2 / psi_B^2`. PN divides by the running psi and subtracts `nu x_hat` in place of the mean;
nothing is stated of its share `|dL/dx|^2 psi^2 / |g|^2`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.claim import Claim, Options, Row, groups, like_first, verdict
from norm_plugin.analysis.theory.models import Activations
from norm_plugin.norms import Norm, build_norm

EXACT, APPROXIMATE = "powernorm-v", "powernorm"
ROUNDING = 1e-6
"""Far above what float64 is off, far below any real effect."""
EPOCHS = 5
"""How often PN sees the batches, so that its running statistics have settled."""
Shares = tuple[Tensor, Tensor]
"""|dL/dx|^2 psi^2 / |g|^2, and 1 - <g, x_hat>^2 / (n |g|^2), its value by the identity; (C,)."""


def running_norm(dim: int) -> Norm:
    """PN that uses running statistics from its first batch on, in float64."""
    return build_norm(APPROXIMATE, dim, layer_scale_groups=0, warmup_updates=0).double().train()


def exact_shares(x: Tensor, g: Tensor) -> Shares:
    """Those of PN-V with gamma = 1, without layer-scale; eps is 0. x, g: (n, C)."""
    norm = build_norm(EXACT, x.size(-1), layer_scale_groups=0, eps=0.0).double().train()
    return _shares(norm, x, g, psi2=x.square().mean(dim=0))


def running_shares(norm: Any, x: Tensor, g: Tensor) -> Shares:
    """Those of PN after its warm-up with gamma = 1; its statistics move. x, g: (n, C)."""
    return _shares(norm, x, g, psi2=norm.psi2.clone() + norm.eps)


def _shares(norm: Norm, x: Tensor, g: Tensor, psi2: Tensor) -> Shares:
    leaf = x.detach().requires_grad_()
    x_hat = norm(leaf)
    (dx,) = torch.autograd.grad(x_hat, leaf, g)
    length = g.square().sum(dim=0)
    product = (g * x_hat.detach()).sum(dim=0)
    return dx.square().sum(dim=0) * psi2 / length, 1 - product.square() / (x.size(0) * length)


def last_epoch(batches: Sequence[Activations]) -> list[Shares]:
    """Those of PN in the last of its epochs over these batches."""
    norm = running_norm(batches[0].x.size(-1))
    epochs = [[running_shares(norm, at.x, at.g) for at in batches] for _ in range(EPOCHS)]
    return epochs[-1]


def measure(options: Options, placement: str) -> pd.DataFrame:
    """Both norms at each norm of the encoder of a full model; of main placements only."""
    return pd.DataFrame(
        {
            **where,
            "batch": batch,
            "norm": norm,
            "identity_error": float((share - by_identity).abs().max()),
            "least_share": float(share.min()),
            "mean_share": float(share.mean()),
            "largest_share": float(share.max()),
            "channels_above": float((share > 1 + ROUNDING).double().mean()),
        }
        for where, at_site in options.activations_by_site(placement)
        for norm, shares in (
            (EXACT, [exact_shares(at.x, at.g) for at in at_site]),
            (APPROXIMATE, last_epoch(at_site)),
        )
        for batch, (share, by_identity) in enumerate(shares)
    )


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Whether PN-V's identity and bound hold, and how far PN exceeds the bound."""
    for (norm, tokens), some in groups(frame, "norm", "tokens"):
        row = {"norm": norm, "tokens": tokens}
        largest, error = some["largest_share"].max(), some["identity_error"].max()
        bound = verdict("-", f"{largest:.4f} at most", None)
        if norm == EXACT:
            yield {**row, **verdict("the identity", f"off by {error:.1e}", error <= ROUNDING)}
            bound = verdict("share <= 1", f"{largest:.4f} at most", largest <= 1 + ROUNDING)
        yield {
            **row,
            **bound,
            "mean share": f"{some['mean_share'].mean():.4f}",
            "channels and batches above 1": f"{some['channels_above'].mean():.1%}",
        }


def tables(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The range of the share by placement."""
    by = ["norm", "tokens", "placement"]
    ranges = frame.groupby(by, sort=False).agg(
        **{"least share": ("least_share", "min"), "largest share": ("largest_share", "max")}
    )
    return [ranges.map("{:.4f}".format).reset_index()]


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """Mean and largest share by norm of the encoder, of the first placement and tokens."""
    shown = like_first(frame, "tokens", "placement")
    for place, (norm, some) in enumerate(groups(shown, "norm")):
        sites = some.groupby("site", sort=False)
        mean, largest = sites["mean_share"].mean(), sites["largest_share"].max()
        look = {"color": style(place)["color"], "linewidth": 1.5}
        axes.plot(range(len(mean)), mean, linestyle="-", label=f"{norm}, mean", **look)
        axes.plot(range(len(mean)), largest, linestyle=":", label=f"{norm}, largest", **look)
    axes.axhline(1.0, color="#888888", linewidth=1)
    axes.set_xlabel(f"norm of the encoder, from below ({frame['placement'].iloc[0]})")
    axes.set_ylabel("|dL/dx|^2 psi^2 / |g|^2")
    axes.legend(loc="lower right", fontsize=8)


CLAIM = Claim(
    place=9,
    caption="Squared length of the gradient by the input of the norm, as a share of |g|^2 / psi^2.",
    case=("placement", "norm", "tokens"),
    measure=measure,
    verdicts=verdicts,
    tables=tables,
    plot=plot,
)
