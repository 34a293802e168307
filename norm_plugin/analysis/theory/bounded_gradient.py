"""The approximate gradient of PowerNorm.

**Claim** (Shen et al. 2020, PowerNorm, the theorem on the approximate gradient). The gradient that
PN's approximate backward pass gives is bounded. The text of the theorem and its assumptions could
not be read here; what is stated below was derived again from Algorithm 2.

With `g = dL/dx_hat`, lengths over the n positions of a channel, `Gamma = mean_V(x_hat^2)` and
`Lambda = mean_V(g x_hat)`, the recursion
`nu_t = (1 - (1 - a_b) Gamma_t) nu_{t-1} + (1 - a_b) Lambda_t` is a weighted mean of nu_{t-1} and
`Lambda_t / Gamma_t`, as long as `(1 - a_b) Gamma_t <= 1`. So |nu_t| is at most M_t, the largest
`|Lambda_s| / Gamma_s` of the batches s up to t. The gradient `dL/dx = (g - nu_{t-1} x_hat) / psi`
is then at most `(|g| + M_{t-1} |x_hat|) / psi`.

**Method.** x and g are taken from each norm of the encoder of the full model. PN, without a
warm-up, without layer-scale and with gamma = 1, sees the batches several times, in float64, from
its start with psi = 1 and nu = 0. Each row of the data is a pass of one batch through one site,
with the largest values over the channels.

With psi = 1 the first pass has `Gamma = psi_B^2`, and `nu_1 = (1 - a_b) Lambda_1`: where the input
has a mean square above `1 / (1 - a_b) = 10`, the first two statements fail in this pass. In a
warm-up, whose psi is that of the batch, they cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch

from norm_plugin.analysis.figures import legend_below, style
from norm_plugin.analysis.theory.claim import Claim, Options, Row, groups, like_first, verdict
from norm_plugin.analysis.theory.lipschitz import EPOCHS, at_sites, running_norm
from norm_plugin.analysis.theory.stacks import Activations

ROUNDING = 1e-9
"""Far above what float64 is off, far below any real effect."""


def passes(batches: Sequence[Activations], epochs: int = EPOCHS) -> Iterator[Row]:
    """What each pass of PN over these batches shows, in their order, epoch by epoch.

    Yields:
        step: the largest (1 - a_b) Gamma of a channel.
        nu: the largest |nu_t| / M_t.
        gradient: the largest |dL/dx| psi / (|g| + M_{t-1} |x_hat|).
        share: the largest |dL/dx| psi / |g|.
    """
    norm: Any = running_norm(batches[0].x.size(-1))
    bound = torch.zeros_like(norm.nu)
    for _ in range(epochs):
        for one in batches:
            psi = (norm.psi2 + norm.eps).sqrt()
            leaf = one.x.detach().requires_grad_()
            x_hat = norm(leaf)
            (dx,) = torch.autograd.grad(x_hat, leaf, one.g)
            x_hat = x_hat.detach()
            g_length, x_length, dx_length = (
                torch.linalg.vector_norm(values, dim=0) for values in (one.g, x_hat, dx)
            )
            gradient = dx_length * psi / (g_length + bound * x_length)
            gamma = x_hat.square().mean(dim=0)
            bound = torch.maximum(bound, (one.g * x_hat).mean(dim=0).abs() / gamma)
            yield {
                "step": float(((1 - norm.alpha_bwd) * gamma).max()),
                "nu": float((norm.nu.abs() / bound).max()),
                "gradient": float(gradient.max()),
                "share": float((dx_length * psi / g_length).max()),
            }


def measure(options: Options, placement: str) -> Iterator[Row]:
    """At each norm of the encoder of a full model; of main placements only."""
    for where, at_site in at_sites(options, placement):
        for number, row in enumerate(passes(at_site)):
            epoch, batch = divmod(number, len(at_site))
            yield {**where, "epoch": epoch, "batch": batch, **row}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Whether nu and the gradient stay within what follows from the recursion."""
    for (tokens, placement), some in groups(frame, "tokens", "placement"):
        row = {"tokens": tokens, "placement": placement}
        for column, stated in (
            ("step", "(1 - a_b) Gamma <= 1"),
            ("nu", "|nu_t| / M_t <= 1"),
            ("gradient", "|dL/dx| psi / (|g| + M |x_hat|) <= 1"),
        ):
            largest = some[column].max()
            yield {**row, **verdict(stated, f"{largest:.4f} at most", largest <= 1 + ROUNDING)}
        share = some["share"].max()
        yield {**row, **verdict("-", f"|dL/dx| psi / |g|: {share:.4f} at most", None)}


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """The largest value of each row over the passes, of the first placement and tokens."""
    first = frame.iloc[0]
    shown = like_first(frame, "tokens", "placement")
    by_pass = shown.groupby(["epoch", "batch"])
    for place, (column, label) in enumerate(
        {
            "step": "(1 - a_b) Gamma",
            "nu": "|nu_t| / M_t",
            "gradient": "|dL/dx| psi / (|g| + M |x_hat|)",
            "share": "|dL/dx| psi / |g|",
        }.items()
    ):
        largest = by_pass[column].max()
        axes.plot(range(1, len(largest) + 1), largest, **style(place), label=label)
    axes.axhline(1.0, color="#888888", linewidth=1)
    axes.set_xlabel(f"pass ({first['placement']})")
    axes.set_ylabel("largest over sites and channels")
    legend_below(axes)


CLAIM = Claim(
    name="bounded-gradient",
    place=10,
    text=__doc__,
    caption="What the recursion bounds by 1, and the share that it does not, over the passes.",
    height=4.0,
    case=("placement", "tokens"),
    measure=measure,
    verdicts=verdicts,
    plot=plot,
)
