"""The assumption behind the bounded gradient.

Shen et al. 2020 (PowerNorm), Assumption 2 and Lemma 4. For each position, `|x_hat| <= C1` with
`C1^2 < 1 / (1 - a_b)`, and `|dL/dx_hat| <= C2`; the moving averages of the squares stay above C3,
and psi above C0, which are not measured. Then nu is bounded, by a number that the proof gives in
C1, C2 and C3.

The mean square of x_hat is 1 in each channel by design. So the mean of |x_hat|^2 over the positions
is the number d of channels, and `1 / (1 - a_b)` is 10, 20 or 100 for the a_b that the paper tries.
The recursion of nu works channel by channel and needs less: `(1 - a_b) Gamma <= 1` in each channel,
for which x_hat^2 <= 1 / (1 - a_b) is enough.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.norms import Norm, build_norm
from norm_plugin.norms.power_norm import PowerNorm
from papers.theory.claim import Options, Row, cases, verdict
from papers.theory.lipschitz import running_norm
from papers.theory.models import through_norm
from papers.theory.trained import power_norm_sites

MAY_LACK = ("nu", "nu_bound")

ALPHAS = 0.9, 0.95, 0.99
"""a_b, of which the paper takes the best on validation."""
LIMITS = {f"{1 / (1 - alpha):.0f}": 1 / (1 - alpha) for alpha in ALPHAS}
"""1 / (1 - a_b), by its text."""
CASE = ("model", "norm", "layer_scale", "tokens", "placement")


def measured_x_hat(x_hat: Tensor) -> Row:
    """Return how far x_hat, (n, C), is from the assumption, by position and by channel."""
    lengths, squares = x_hat.square().sum(dim=-1), x_hat.square().amax(dim=0)
    row: Row = {
        "channels": x_hat.size(-1),
        "mean_length2": float(lengths.mean()),
        "largest_length2": float(lengths.max()),
        "largest_square": float(squares.max()),
    }
    for name, limit in LIMITS.items():
        row[f"positions_within_{name}"] = float((lengths < limit).double().mean())
        row[f"channels_within_{name}"] = float((squares < limit).double().mean())
    return row


def nu_bound(x_hats: Sequence[Tensor], gs: Sequence[Tensor], alpha: float) -> float:
    """Return the bound of Lemma 4 on the length of nu, with the constants that these batches have.

    Args:
        x_hats, gs: x_hat and dL/dx_hat of each batch, (n, C), in their order.
    """
    c1, c2 = (max(float(each.norm(dim=-1).max()) for each in several) for several in (x_hats, gs))
    average, c3 = torch.zeros_like(x_hats[0][0]), math.inf
    for x_hat in x_hats:  # the proof takes C3 for the averages of Gamma^2
        average = alpha * average + (1 - alpha) * x_hat.square().mean(dim=0).square()
        c3 = min(c3, float(average.min()))
    k = math.ceil(math.log((1 - alpha) * c3 / (2 * c1**2)) / math.log(alpha))
    c5 = c3 / (2 * (1 - alpha) * alpha ** (k - 1))
    c6 = 2 * c1 * c2 / ((1 - alpha) * c5)
    return (1 - alpha) * (c6 + k * c1 * c2) * math.sqrt(len(average))


def normalized(norm: Norm, x: Tensor) -> Tensor:
    """Return x_hat of a norm in training, (n, C) in float64; the norm itself is not changed."""
    alone: Any = copy.deepcopy(norm).double().train()
    with torch.no_grad():
        alone.weight.fill_(1.0)
        alone.bias.zero_()
        return cast(Tensor, alone.normalize(x, None))  # bypasses the hook of its model


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure x_hat of PN-V, and nu of PN, at each norm of the encoder at the start."""
    for where, at in options.activations(placement):
        for groups in (0, 1):
            norm = build_norm("powernorm-v", at.x.size(-1), layer_scale_groups=groups)
            of_norm = {"model": "start", "norm": "powernorm-v", "layer_scale": groups}
            yield {**of_norm, **where, **measured_x_hat(normalized(norm, at.x))}
    for where, at_site in options.activations_by_site(placement):
        pn: Any = running_norm(at_site[0].x.size(-1))
        x_hats = [through_norm(pn, at.x, at.g)[1] for at in at_site]
        row: Row = {"model": "start", "norm": "powernorm", "layer_scale": 0, **where}
        gs = [at.g for at in at_site]
        bound = {"nu": float(pn.nu.norm()), "nu_bound": nu_bound(x_hats, gs, pn.alpha_bwd)}
        for seed, x_hat in enumerate(x_hats):
            yield {**row, "seed": seed, **measured_x_hat(x_hat), **bound}


def measure_once(options: Options) -> Iterator[Row]:
    """Measure x_hat, and nu of PN, at each norm of the encoder of each PowerNorm checkpoint."""
    for path in options.checkpoints:
        batches: dict[str, list[tuple[Row, Tensor, Tensor, Any]]] = {}
        for row, norm, at in power_norm_sites(path, options.data):
            x_hat, g = normalized(norm, at.x), at.g * norm.weight.detach().double()
            batches.setdefault(at.site, []).append((row, x_hat, g, norm))
        for at_site in batches.values():
            rows, x_hats, gs, norms = zip(*at_site)
            bound: Row = {}
            if isinstance(norms[0], PowerNorm):
                nu = float(norms[0].nu.norm())  # as the run left it
                bound = {"nu": nu, "nu_bound": nu_bound(x_hats, gs, norms[0].alpha_bwd)}
            for row, x_hat in zip(rows, x_hats):
                yield {**row, **measured_x_hat(x_hat), **bound}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether x_hat satisfies the assumption for some a_b of the paper, and nu its bound."""
    loosest = max(LIMITS.values())
    for row, some in cases(frame, *CASE):
        mean, channels = some["mean_length2"].mean(), some["channels"].iloc[0]
        for what, column, within in (
            (f"|x_hat|^2, {mean:.0f} on average (d = {channels})", "largest_length2", "positions"),
            ("x_hat^2 in a channel", "largest_square", "channels"),
        ):
            largest = some[column].max()
            stated = f"{what} < 1 / (1 - a_b)"
            shares = {
                f"{within} within {name}": some[f"{within}_within_{name}"].mean() for name in LIMITS
            }
            yield {
                **row,
                **verdict(stated, f"{largest:.1f} at most", bool(largest < loosest)),
                **{name.replace(within, "share"): f"{share:.1%}" for name, share in shares.items()},
            }
        if some["nu"].notna().any():
            nu, bound = some["nu"].max(), some["nu_bound"].min()
            text = f"{nu:.2g} at most, the bound is {bound:.2g} or more"
            holds = bool((some["nu"] <= some["nu_bound"]).all())
            yield {**row, **verdict("|nu| is within Lemma 4's bound", text, holds)}
