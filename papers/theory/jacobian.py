"""The Jacobian of LayerNorm.

Xiong et al. 2020, Lemma 3. The spectral norm of LayerNorm's Jacobian J at x is `O(sqrt(d) / |x|)`.

By hand, at one position and with gain 1, `J = (I - 1 1^T / d - y y^T / d) / sigma` with
`y = (x - mu) / sigma`. For d > 2 its largest singular value is `1 / sigma = sqrt(d) / |x - mu|`. So
the constant of the lemma, `|J| |x| / sqrt(d)`, is `|x| / |x - mu|`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.norms import Norm, build_norm
from papers.theory.claim import Options, Row, verdict

CASE = ("placement", "norm", "tokens")
MAY_LACK = ("mean",)

LAYERNORM = "layernorm"
POSITIONS = 2
"""The number of positions, the first ones, that are measured at each norm of the encoder."""
MEANS = (0.0, 1.0, 3.0, 10.0)
"""The means of the normal vectors of variance 1 that are measured."""


def jacobian(norm: Norm, x: Tensor) -> Tensor:
    """Return dy_i / dx_j, (d, d), of y = norm(x), a norm over channels. x: (d,)."""
    # copy i of x gives the gradient of output i, so one backward pass gives all rows
    copies = x.detach().repeat(x.numel(), 1).requires_grad_()
    (rows,) = torch.autograd.grad(norm(copies).diagonal().sum(), copies)
    return rows


def spectral_norm(norm: Norm, x: Tensor) -> float:
    """Return the largest singular value of the Jacobian; NaN if it is not finite. x: (d,)."""
    matrix = jacobian(norm, x)
    if not matrix.isfinite().all():  # an error of the singular value decomposition
        return math.nan
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure at inputs of the norms of the encoder of a full model, for main placements only."""
    inputs = [
        ({"tokens": where["tokens"], "placement": placement, "mean": math.nan}, x)
        for where, (first,) in options.activations_by_site(placement, seeds=1)
        for x in first.x[:POSITIONS]
    ]
    return at_inputs(options, inputs)


def measure_once(options: Options) -> Iterator[Row]:
    """Measure at normal vectors of several means."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(options.full_dim, generator=generator, dtype=torch.float64)
    inputs = [({"tokens": "none", "placement": None, "mean": m}, normal + m) for m in MEANS]
    return at_inputs(options, inputs)


def at_inputs(options: Options, inputs: Iterable[tuple[Row, Tensor]]) -> Iterator[Row]:
    """Yield a row for each x."""
    for where, x in inputs:
        length = torch.linalg.vector_norm(x)
        scaled = float(options.full_dim**0.5 / length)
        value = spectral_norm(build_norm(LAYERNORM, options.full_dim).double(), x)
        row = {"length": float(length), "scaled": scaled, "spectral_norm": value}
        yield {"norm": LAYERNORM, **where, **row}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge the range of the constant on hidden states, and whether it grows with the mean."""
    frame = frame.assign(constant=frame["spectral_norm"] / frame["scaled"])
    frame = frame.sort_values("placement", key=pd.isna, kind="stable")
    by = ["norm", "tokens", "placement"]
    for (norm, tokens, placement), some in frame.groupby(by, sort=False, dropna=False):
        constants = some["constant"]
        if pd.isna(placement):
            x = f"normal, means {', '.join(f'{mean:g}' for mean in some['mean'])}"
            measured = ", ".join(f"{constant:.2f}" for constant in constants)
            holds = bool(constants.iloc[-1] <= 2 * constants.iloc[0])
        else:
            x = f"{len(some)} hidden states, {placement}, {tokens} tokens"
            measured, holds = f"{constants.min():.3f} to {constants.max():.3f}", None
        lengths = f"{some['length'].min():.1f} to {some['length'].max():.1f}"
        yield {"norm": norm, "x": x, "|x|": lengths, **verdict("O(1)", measured, holds)}
