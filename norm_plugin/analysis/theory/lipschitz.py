"""The gradient through PowerNorm.

**Claim** (Shen et al. 2020, PowerNorm, Lemma 1). Under PN-V, with `g = dL/dx_hat` and lengths over
the n positions of a channel, `|dL/dx|^2 = (|g|^2 - <g, x_hat>^2 / n) / psi_B^2`, which is at most
`|g|^2 / psi_B^2`. So the Lipschitz constant of the loss in the input of the norm is at most
`gamma / psi_B` times that in its output.

**Method.** What can be measured is the share `|dL/dx|^2 psi^2 / |g|^2` in each channel, not the
Lipschitz constant, which is a maximum over all inputs. x and g are taken from each norm of the
encoder of the full model. There is no layer-scale, and gamma is 1. PN divides by the running psi
and subtracts `nu x_hat` in place of the mean; nothing is stated of its share in one batch, and how
far it exceeds 1 can only be measured. PN sees the batches several times first, so that its running
statistics have settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.claim import Claim, Options, Row, groups, like_first, verdict
from norm_plugin.analysis.theory.stacks import Activations, encoder_activations
from norm_plugin.norms import Norm, build_norm

EXACT, APPROXIMATE = "powernorm-v", "powernorm"
ROUNDING = 1e-6
"""Far above what float64 is off, far below any real effect."""
EPOCHS = 5
"""How often PN sees the batches, so that its running statistics have settled."""


class Shares(NamedTuple):
    """Of a norm over positions, by channel, (C,) each.

    Attributes:
        measured: |dL/dx|^2 psi^2 / |g|^2; at most 1 under PN-V.
        by_formula: 1 - <g, x_hat>^2 / (n |g|^2), which the identity of PN-V gives.
    """

    measured: Tensor
    by_formula: Tensor


def exact_norm(dim: int) -> Norm:
    """PN-V without layer-scale, in float64; eps is 0, as in the identity."""
    return build_norm(EXACT, dim, layer_scale_groups=0, eps=0.0).double().train()


def running_norm(dim: int) -> Norm:
    """PN that uses running statistics from its first batch on, in float64."""
    return build_norm(APPROXIMATE, dim, layer_scale_groups=0, warmup_updates=0).double().train()


def exact_shares(x: Tensor, g: Tensor) -> Shares:
    """Those of PN-V with gamma = 1. x, g: (n, C)."""
    return _shares(exact_norm(x.size(-1)), x, g, psi2=x.square().mean(dim=0))


def running_shares(norm: Any, x: Tensor, g: Tensor) -> Shares:
    """Those of PN after its warm-up with gamma = 1; its statistics move. x, g: (n, C)."""
    return _shares(norm, x, g, psi2=norm.psi2.clone() + norm.eps)


def _shares(norm: Norm, x: Tensor, g: Tensor, psi2: Tensor) -> Shares:
    leaf = x.detach().requires_grad_()
    x_hat = norm(leaf)
    (dx,) = torch.autograd.grad(x_hat, leaf, g)
    length = g.square().sum(dim=0)
    product = (g * x_hat.detach()).sum(dim=0)
    return Shares(
        dx.square().sum(dim=0) * psi2 / length, 1 - product.square() / (x.size(0) * length)
    )


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Both norms at each norm of the encoder of a full model; of main placements only."""
    for where, at_site in at_sites(options, placement):
        exact = [exact_shares(one.x, one.g) for one in at_site]
        for norm, shares in ((EXACT, exact), (APPROXIMATE, last_epoch(at_site))):
            for batch, share in enumerate(shares):
                yield {
                    **where,
                    "batch": batch,
                    "norm": norm,
                    "identity_error": float((share.measured - share.by_formula).abs().max()),
                    "least_share": float(share.measured.min()),
                    "mean_share": float(share.measured.mean()),
                    "largest_share": float(share.measured.max()),
                    "channels_above": float((share.measured > 1 + ROUNDING).double().mean()),
                }


def at_sites(options: Options, placement: str) -> Iterator[tuple[Row, tuple[Activations, ...]]]:
    """What each norm of the encoder of a full model sees in every batch, and its columns."""
    for batches in options.main_batches_of(placement):
        model = options.model(placement, batches, seed=0)
        seen = [encoder_activations(model, batches, seed) for seed in range(options.seeds)]
        for at_site in zip(*seen):
            site = at_site[0].site
            yield {"tokens": batches.kind, "placement": placement, "site": site}, at_site


def last_epoch(batches: Sequence[Activations]) -> list[Shares]:
    """Those of PN in the last of its epochs over these batches."""
    norm = running_norm(batches[0].x.size(-1))
    epochs = [[running_shares(norm, one.x, one.g) for one in batches] for _ in range(EPOCHS)]
    return epochs[-1]


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Whether PN-V's identity and bound hold, and how far PN exceeds the bound."""
    for (norm, tokens), some in groups(frame, "norm", "tokens"):
        row = {"norm": norm, "tokens": tokens}
        largest, error = some["largest_share"].max(), some["identity_error"].max()
        if norm == EXACT:
            met = error <= ROUNDING
            yield {**row, **verdict("the identity", f"off by {error:.1e}", met)}
            bound = verdict("share <= 1", f"{largest:.4f} at most", largest <= 1 + ROUNDING)
        else:
            bound = verdict("-", f"{largest:.4f} at most", None)
        yield {
            **row,
            **bound,
            "mean share": f"{some['mean_share'].mean():.4f}",
            "channels and batches above 1": f"{some['channels_above'].mean():.1%}",
        }


def tables(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The range of the share by placement."""
    rows = [
        {
            "norm": norm,
            "tokens": tokens,
            "placement": placement,
            "least share": f"{some['least_share'].min():.4f}",
            "largest share": f"{some['largest_share'].max():.4f}",
        }
        for (norm, tokens, placement), some in groups(frame, "norm", "tokens", "placement")
    ]
    return [pd.DataFrame(rows)]


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """Mean and largest share by norm of the encoder, of the first placement and tokens."""
    first = frame.iloc[0]
    shown = like_first(frame, "tokens", "placement")
    for place, (norm, some) in enumerate(groups(shown, "norm")):
        sites = some.groupby("site", sort=False)
        mean, largest = sites["mean_share"].mean(), sites["largest_share"].max()
        look = {"color": style(place)["color"], "linewidth": 1.5}
        axes.plot(range(len(mean)), mean, linestyle="-", label=f"{norm}, mean", **look)
        axes.plot(range(len(mean)), largest, linestyle=":", label=f"{norm}, largest", **look)
    axes.axhline(1.0, color="#888888", linewidth=1)
    axes.set_xlabel(f"norm of the encoder, from below ({first['placement']})")
    axes.set_ylabel("|dL/dx|^2 psi^2 / |g|^2")
    axes.legend(loc="lower right", fontsize=8)


CLAIM = Claim(
    name="lipschitz",
    place=9,
    text=__doc__,
    caption="Squared length of the gradient by the input of the norm, as a share of |g|^2 / psi^2.",
    case=("placement", "norm", "tokens"),
    measure=measure,
    verdicts=verdicts,
    tables=tables,
    plot=plot,
)
