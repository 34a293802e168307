"""The adaptive scale of AdaNorm.

Xu et al. 2019 (AdaNorm), section 4 with Equation 7 and Theorem 2. With y the standardized input,
the output is `z = phi(y) y`. `phi(y) = C (1 - k y)` is stated to be the only differentiable
function whose mean over the H channels is a constant C, and for which the mean of z is bounded. By
Chebyshev's inequality it is above 0 for a share of at least `1 - k^2` of the channels.

y has the mean 0 and the mean square 1 over its channels. So the mean of phi is C, the mean of z is
`-C k`, and at most a share `k^2` of the channels has `|y| >= 1 / k`. For a fixed H there are other
functions: the mean of z of `C (1 + k (y^2 - 1))` is `C k mean(y^3)`, which `sqrt(H)` bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
from torch import Tensor

from norm_plugin.norms import build_norm
from papers.theory.claim import ROUNDING, Options, Row, cases, verdict

CASE = ("placement", "phi", "tokens")

C, K = 2.0, 0.1
LINEAR, SQUARE = "C (1 - k y)", "C (1 + k (y^2 - 1))"
PHI: dict[str, Callable[[Tensor], Tensor]] = {
    LINEAR: lambda y: C * (1 - K * y),
    SQUARE: lambda y: C * (1 + K * (y.square() - 1)),
}


def standardized(x: Tensor) -> Tensor:
    """Return y of AdaNorm, in the dtype of x. x, y: (n, H)."""
    y: Tensor = build_norm("layernorm-simple", x.size(-1), eps=0.0).to(x.dtype)(x)
    return y


def adanorm_output(x: Tensor) -> Tensor:
    """Return the output of the norm ``adanorm``. x, z: (n, H)."""
    z: Tensor = build_norm("adanorm", x.size(-1), scale=C, k=K, eps=0.0).to(x.dtype)(x)
    return z


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure at each norm of the encoder of a full model, for main placements only."""
    for where, at in options.activations(placement):
        y = standardized(at.x)
        for name, function in PHI.items():
            phi = function(y)
            means = (adanorm_output(at.x) if name == LINEAR else phi * y).mean(dim=-1)
            yield {
                **where,
                "phi": name,
                "positions": len(y),
                "phi_error": float((phi.mean(dim=-1) - C).abs().max()),
                "z_least": float(means.min()),
                "z_largest": float(means.max()),
                "share_outside": float((y.abs() >= 1 / K).double().mean(dim=-1).max()),
                "negative": float((phi <= 0).double().mean()),
            }


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether the mean of phi, that of z and the share of |y| >= 1 / k are as stated."""
    for row, some in cases(frame, "phi"):
        row["positions"] = f"{some['positions'].sum():,}"
        error = some["phi_error"].max()
        yield {**row, **verdict(f"mean of phi = {C:g}", f"off by {error:.1e}", error <= ROUNDING)}
        least, largest = some["z_least"].min(), some["z_largest"].max()
        means = f"{least:.4f} to {largest:.4f}"
        if row["phi"] != LINEAR:
            yield {**row, **verdict("-", f"mean of z: {means}", None)}
            continue
        met = max(abs(least + C * K), abs(largest + C * K)) <= ROUNDING
        yield {**row, **verdict(f"mean of z = {-C * K:g}", means, met)}
        share = some["share_outside"].max()
        stated = f"share of |y| >= {1 / K:g} at most {K**2:g}"
        yield {**row, **verdict(stated, f"{share:.4f} at most", share <= K**2 + ROUNDING)}
