"""Lemma 3 of Xiong et al. 2020: the Jacobian of LayerNorm shrinks as its input grows.

At one position, with gain 1, it is J = (I - 1 1^T / d - y y^T / d) / sigma, y = (x - mu) / sigma,
whose largest singular value is 1 / sigma = sqrt(d) / |x - mu|, for d > 2. So the constant in
O(sqrt(d) / |x|) is |x| / |x - mu|, which is near 1 for hidden states and has no bound in general.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.activations import encoder_activations, fresh_model
from norm_plugin.analysis.theory.claim import Claim, Findings, Options, Row, Table
from norm_plugin.analysis.theory.rows import group
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


def measure(options: Options, placement: str) -> list[Row]:
    """At inputs of the norms of the encoder of a full model; of main placements only."""
    if placement not in options.main:
        return []
    return [
        row
        for batches in options.batches_of(placement)
        for row in _rows(
            options,
            [
                x
                for one in encoder_activations(
                    fresh_model(options, placement, batches, seed=0), batches, seed=0
                )
                for x in one.x[:POSITIONS]
            ],
            tokens=batches.kind,
            placement=placement,
            mean=None,
        )
    ]


def measure_once(options: Options) -> list[Row]:
    """At normal vectors of several means."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(options.full_dim, generator=generator, dtype=torch.float64)
    return [
        row
        for mean in OFFSETS
        for row in _rows(options, [normal + mean], tokens="none", placement=None, mean=mean)
    ]


def _rows(options: Options, xs: list[Tensor], **where: Any) -> list[Row]:
    """A row for each norm over channels and each x."""
    dim, rows = options.full_dim, list[Row]()
    for name in dict.fromkeys((LAYERNORM, options.norm_type)):
        if not norm_spec(name).batch_statistics:
            norm = build_norm(name, dim).double()
            rows += [
                {
                    "norm": name,
                    **where,
                    "length": float(torch.linalg.vector_norm(x)),
                    "scaled": float(dim**0.5 / torch.linalg.vector_norm(x)),
                    "spectral_norm": spectral_norm(norm, x),
                }
                for x in xs
            ]
    return rows


def constant(row: Row) -> float:
    """The constant in O(sqrt(d) / |x|) that this input needs."""
    return float(row["spectral_norm"] / row["scaled"])


def find(rows: list[Row]) -> Findings:
    """The range of the constant on hidden states, and its growth with the mean of x."""
    sentences: list[str] = []
    table: list[tuple[str, ...]] = []
    for (norm,), of_norm in group(rows, "norm").items():
        states = [row for row in of_norm if row["placement"]]
        if states:  # a placement may have no norm in the encoder
            found = [constant(row) for row in states]
            lengths = [row["length"] for row in states]
            sentences.append(
                f"`{norm}`: on {len(states)} hidden states with |x| from {min(lengths):.1f} to "
                f"{max(lengths):.1f}, |J| |x| / sqrt(d) is {min(found):.3f} to {max(found):.3f}."
            )
        shifted = [(row["mean"], constant(row)) for row in of_norm if not row["placement"]]
        listed = ", ".join(f"{value:.2f} at a mean of {mean:g}" for mean, value in shifted)
        if shifted:  # unless one of them was not finite
            sentences.append(
                f"`{norm}`: on normal vectors of variance 1 it is {listed}. "
                + (
                    "The constant grows with the mean, so the lemma needs inputs of small mean."
                    if shifted[-1][1] > 2 * shifted[0][1]
                    else "The constant does not grow with the mean."
                )
            )
        for (tokens, placement), some in group(states, "tokens", "placement").items():
            of_group = [constant(row) for row in some]
            sizes = [row["length"] for row in some]
            table.append(
                (
                    norm,
                    tokens,
                    placement,
                    f"{min(sizes):.1f} to {max(sizes):.1f}",
                    f"{min(of_group):.3f} to {max(of_group):.3f}",
                )
            )
    header = ("norm", "tokens", "placement", "|x|", "|J| |x| / sqrt(d)")
    return Findings(sentences, [Table(header, table)])


def plot(rows: list[Row], axes: Any) -> None:
    """Spectral norm over sqrt(d) / |x|, a point an input."""
    for place, ((norm,), some) in enumerate(group(rows, "norm").items()):
        states = [row for row in some if row["placement"]]
        axes.plot(
            [row["scaled"] for row in states],
            [row["spectral_norm"] for row in states],
            "o",
            color=style(place)["color"],
            markersize=3,
            alpha=0.5,
            label=norm,
        )
    shown = [row["scaled"] for row in rows if row["placement"]] or [row["scaled"] for row in rows]
    ends = [min(shown), max(shown)]
    axes.plot(ends, ends, color="#888888", linewidth=1, label="sqrt(d) / |x|")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("sqrt(d) / |x|")
    axes.set_ylabel("|J|")
    axes.legend(loc="upper left", fontsize=8)


CLAIM = Claim(
    name="jacobian",
    title="The Jacobian of LayerNorm",
    source="Xiong et al. 2020, Lemma 3",
    statement=("The spectral norm of LayerNorm's Jacobian at x is `O(sqrt(d) / |x|)`.",),
    method=(
        "By hand it is `1 / sigma = sqrt(d) / |x - mu|`, so the constant is `|x| / |x - mu|`. "
        "Measured: the largest singular value of the Jacobian that autograd gives in float64, at "
        "inputs of the encoder's norms in the full model.",
    ),
    caption="Spectral norm of the Jacobian at hidden states, against sqrt(d) / |x|.",
    measure=measure,
    measure_once=measure_once,
    find=find,
    plot=plot,
)
