"""What PowerNorm says of the gradient that passes a norm over positions, by channel.

With x_hat = x / psi_B, psi_B^2 = mean_V x^2, g = dL/dx_hat, and lengths over the n positions of one
channel, the exact gradient of PN-V is dL/dx = (g - x_hat mean_V(g x_hat)) / psi_B, so that

    |dL/dx|^2 = (|g|^2 - <g, x_hat>^2 / n) / psi_B^2  <=  |g|^2 / psi_B^2

PN divides by the running psi and subtracts nu x_hat in place of the mean. Its gradient obeys no
such bound for one batch, and how far it exceeds |g|^2 / psi^2 can only be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.activations import (
    Activations,
    encoder_activations,
    fresh_model,
)
from norm_plugin.analysis.theory.claim import Claim, Findings, Options, Row, Table
from norm_plugin.analysis.theory.rows import group
from norm_plugin.norms import Norm, build_norm

EXACT, APPROXIMATE = "powernorm-v", "powernorm"
ROUNDING = 1e-6
"""eps = 1e-5 beside psi^2, and float64: the identity is that of eps = 0."""
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


def measure(options: Options, placement: str) -> list[Row]:
    """Both norms at each norm of the encoder of a full model; of main placements only."""
    rows: list[Row] = []
    for batches in options.batches_of(placement) if placement in options.main else []:
        model = fresh_model(options, placement, batches, seed=0)
        seen = [encoder_activations(model, batches, seed) for seed in range(options.seeds)]
        for at_site in zip(*seen):
            where = {"tokens": batches.kind, "placement": placement, "site": at_site[0].site}
            rows += [
                {**where, "batch": batch, "norm": EXACT, **_of(exact_shares(one.x, one.g))}
                for batch, one in enumerate(at_site)
            ]
            rows += [
                {**where, "batch": batch, "norm": APPROXIMATE, **_of(shares)}
                for batch, shares in enumerate(last_epoch(at_site))
            ]
    return rows


def last_epoch(batches: Sequence[Activations]) -> list[Shares]:
    """Those of PN in the last of its epochs over these batches."""
    norm = running_norm(batches[0].x.size(-1))
    epochs = [[running_shares(norm, one.x, one.g) for one in batches] for _ in range(EPOCHS)]
    return epochs[-1]


def _of(shares: Shares) -> Row:
    """The columns of a row."""
    return {
        "identity_error": float((shares.measured - shares.by_formula).abs().max()),
        "least_share": float(shares.measured.min()),
        "mean_share": float(shares.measured.mean()),
        "largest_share": float(shares.measured.max()),
        "channels_above": float((shares.measured > 1 + ROUNDING).double().mean()),
    }


def find(rows: list[Row]) -> Findings:
    """Whether PN-V's identity and bound hold, and how far PN exceeds the bound."""
    sentences: list[str] = []
    table: list[tuple[str, ...]] = []
    for (norm, tokens), some in group(rows, "norm", "tokens").items():
        largest = max(row["largest_share"] for row in some)
        mean = sum(row["mean_share"] for row in some) / len(some)
        above = sum(row["channels_above"] for row in some) / len(some)
        error = max(row["identity_error"] for row in some)
        if norm == EXACT:
            met = error <= ROUNDING and largest <= 1 + ROUNDING
            sentences.append(
                f"`{norm}`, {tokens} tokens: the identity is met to {error:.1e} and the bound "
                f"{'holds' if met else 'does not hold'} in every channel. The share is "
                f"{mean:.4f} on average and at most {largest:.4f}."
            )
        else:
            sentences.append(
                f"`{norm}`, {tokens} tokens: the share is {mean:.4f} on average and at most "
                f"{largest:.4f}. It exceeds 1 in {above:.1%} of the channels and batches"
                + ("." if above == 0 else ", so the bound of the exact gradient is not one of PN.")
            )
        for (placement,), one in group(some, "placement").items():
            table.append(
                (
                    norm,
                    tokens,
                    placement,
                    f"{min(row['least_share'] for row in one):.4f}",
                    f"{max(row['largest_share'] for row in one):.4f}",
                )
            )
    return Findings(
        sentences, [Table(("norm", "tokens", "placement", "least share", "largest share"), table)]
    )


def plot(rows: list[Row], axes: Any) -> None:
    """Mean and largest share by norm of the encoder, of the first placement and tokens."""
    first = rows[0]
    shown = [row for row in rows if all(row[k] == first[k] for k in ("tokens", "placement"))]
    for place, ((norm,), some) in enumerate(group(shown, "norm").items()):
        sites = group(some, "site").values()
        mean = [sum(row["mean_share"] for row in at) / len(at) for at in sites]
        largest = [max(row["largest_share"] for row in at) for at in sites]
        look = {"color": style(place)["color"], "linewidth": 1.5}
        axes.plot(range(len(mean)), mean, linestyle="-", label=f"{norm}, mean", **look)
        axes.plot(range(len(mean)), largest, linestyle=":", label=f"{norm}, largest", **look)
    axes.axhline(1.0, color="#888888", linewidth=1)
    axes.set_xlabel(f"norm of the encoder, from below ({first['placement']})")
    axes.set_ylabel("|dL/dx|^2 psi^2 / |g|^2")
    axes.legend(loc="lower right", fontsize=8)


CLAIM = Claim(
    name="lipschitz",
    title="The gradient through PowerNorm",
    source="Shen et al. 2020 (PowerNorm), Theorem 3",
    statement=(
        "Under PN-V, with `g = dL/dx_hat` and lengths over the n positions of a channel, "
        "`|dL/dx|^2 = (|g|^2 - <g, x_hat>^2 / n) / psi_B^2`, which is at most `|g|^2 / psi_B^2`. "
        "So the Lipschitz constant of the loss in the input of the norm is at most `gamma / psi_B` "
        "times that in its output.",
    ),
    method=(
        "What can be measured is the share `|dL/dx|^2 psi^2 / |g|^2` in each channel, not the "
        "Lipschitz constant, which is a maximum over all inputs. x and g are taken from each norm "
        "of the encoder of the full model. PN sees the batches several times first, so that its "
        "running statistics have settled. There is no layer-scale, and gamma is 1.",
    ),
    caption="Squared length of the gradient by the input of the norm, as a share of |g|^2 / psi^2.",
    measure=measure,
    find=find,
    plot=plot,
)
