"""The Jacobian of LayerNorm.

**Claim** (Xiong et al. 2020, Lemma 3). The spectral norm of LayerNorm's Jacobian J at x is
`O(sqrt(d) / |x|)`.

**Method.** By hand, at one position and with gain 1, `J = (I - 1 1^T / d - y y^T / d) / sigma` with
`y = (x - mu) / sigma`. For d > 2 its largest singular value is `1 / sigma = sqrt(d) / |x - mu|`. So
the constant of the lemma, `|J| |x| / sqrt(d)`, is `|x| / |x - mu|`: near 1 for hidden states, and
without a bound in general. Measured: the largest singular value of the Jacobian that autograd gives
in float64, at inputs of the encoder's norms in the full model, and at normal vectors of variance 1
with several means. The lemma has its constant if this does not double over these means; else it
needs inputs of small mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.claim import Claim, Options, Row, groups, verdict
from norm_plugin.analysis.theory.stacks import encoder_activations
from norm_plugin.norms import Norm, build_norm, norm_spec

LAYERNORM = "layernorm"
POSITIONS = 2
"""Of each norm of the encoder, the first ones."""
OFFSETS = (0.0, 1.0, 3.0, 10.0)
"""Means of normal vectors with variance 1."""


def jacobian(norm: Norm, x: Tensor) -> Tensor:
    """dy_i / dx_j of y = norm(x), (d, d), of a norm over channels. x: (d,)."""
    # copy i of x gives the gradient of output i, so one backward pass gives all rows
    copies = x.detach().repeat(x.numel(), 1).requires_grad_()
    (rows,) = torch.autograd.grad(norm(copies).diagonal().sum(), copies)
    return rows


def spectral_norm(norm: Norm, x: Tensor) -> float:
    """The largest singular value of the Jacobian; NaN where that is not finite. x: (d,)."""
    found = jacobian(norm, x)
    if not found.isfinite().all():  # an error of the singular value decomposition
        return math.nan
    return float(torch.linalg.matrix_norm(found, ord=2))


def measure(options: Options, placement: str) -> Iterator[Row]:
    """At inputs of the norms of the encoder of a full model; of main placements only."""
    for batches in options.main_batches_of(placement):
        model = options.model(placement, batches, seed=0)
        seen = encoder_activations(model, batches, seed=0)
        xs = [x for one in seen for x in one.x[:POSITIONS]]
        yield from _rows(options, xs, tokens=batches.kind, placement=placement, mean=None)


def measure_once(options: Options) -> Iterator[Row]:
    """At normal vectors of several means."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(options.full_dim, generator=generator, dtype=torch.float64)
    for mean in OFFSETS:
        yield from _rows(options, [normal + mean], tokens="none", placement=None, mean=mean)


def _rows(options: Options, xs: Iterable[Tensor], **where: Any) -> Iterator[Row]:
    """A row for each norm over channels and each x."""
    for name in dict.fromkeys((LAYERNORM, options.norm_type)):
        if norm_spec(name).batch_statistics:
            continue
        norm = build_norm(name, options.full_dim).double()
        for x in xs:
            length = torch.linalg.vector_norm(x)
            yield {
                "norm": name,
                **where,
                "length": float(length),
                "scaled": float(options.full_dim**0.5 / length),
                "spectral_norm": spectral_norm(norm, x),
            }


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """The range of the constant on hidden states, and whether it grows with the mean of x."""
    frame = frame.assign(constant=frame["spectral_norm"] / frame["scaled"])
    for norm, of_norm in groups(frame, "norm"):
        states = of_norm[of_norm["placement"].notna()]
        for (tokens, placement), some in groups(states, "tokens", "placement"):
            yield {
                "norm": norm,
                "x": f"{len(some)} hidden states, {placement}, {tokens} tokens",
                "|x|": f"{some['length'].min():.1f} to {some['length'].max():.1f}",
                **verdict(
                    "O(1)", f"{some['constant'].min():.3f} to {some['constant'].max():.3f}", None
                ),
            }
        shifted = of_norm[of_norm["placement"].isna()]
        if len(shifted):
            constants = shifted["constant"]
            grows = constants.iloc[-1] > 2 * constants.iloc[0]
            yield {
                "norm": norm,
                "x": f"normal, means {', '.join(f'{mean:g}' for mean in shifted['mean'])}",
                "|x|": f"{shifted['length'].min():.1f} to {shifted['length'].max():.1f}",
                **verdict("O(1)", ", ".join(f"{one:.2f}" for one in constants), not grows),
            }


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """Spectral norm over sqrt(d) / |x|, a point an input."""
    states = frame[frame["placement"].notna()]
    for place, norm in enumerate(frame["norm"].unique()):
        some = states[states["norm"] == norm]
        look = {"color": style(place)["color"], "markersize": 3, "alpha": 0.5}
        axes.plot(some["scaled"], some["spectral_norm"], "o", **look, label=norm)
    shown = (states if len(states) else frame)["scaled"]
    ends = [shown.min(), shown.max()]
    axes.plot(ends, ends, color="#888888", linewidth=1, label="sqrt(d) / |x|")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("sqrt(d) / |x|")
    axes.set_ylabel("|J|")
    axes.legend(loc="upper left", fontsize=8)


CLAIM = Claim(
    name="jacobian",
    place=6,
    text=__doc__,
    caption="Spectral norm of the Jacobian at hidden states, against sqrt(d) / |x|.",
    case=("placement", "norm", "tokens"),
    may_lack=("mean",),
    measure=measure,
    measure_once=measure_once,
    verdicts=verdicts,
    plot=plot,
)
