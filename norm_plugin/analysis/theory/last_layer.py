"""Theorem 1 of Xiong et al. 2020: the last layer's gradient, and how it depends on the depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.seeds import Sample
from norm_plugin.analysis.theory.batches import Batches
from norm_plugin.analysis.theory.claim import Claim, Findings, Options, Row, Table, with_interval
from norm_plugin.analysis.theory.fits import contains, exponent
from norm_plugin.analysis.theory.gradients import LastLayer, last_layer_gradient
from norm_plugin.analysis.theory.models import full, random_output_matrix, simplified
from norm_plugin.analysis.theory.rows import group
from norm_plugin.analysis.theory.stack_pass import uniform_labels
from norm_plugin.norms import norm_spec

SIMPLIFIED, FULL = "simplified", "full"
THEOREM = {"post": 0.0, "pre": -0.5}
"""The exponent of L, by placement."""
NEAR = 0.1
"""Measured exponents that are further from the theorem's are called different."""
NORMS = {
    "the mean of the norms of single positions": "of_positions",
    "the norm of the mean gradient": "of_mean",
}
"""The two norms of the gradient, and their columns."""
GROWS = 1.5
"""Lengths of hidden states that differ by less than this factor have no exponent."""


def measure(options: Options, placement: str) -> list[Row]:
    """Two norms of the gradient at each number of layers, in both models."""
    mixes = norm_spec(options.norm_type).batch_statistics  # the decoder keeps LayerNorm then
    rows: list[Row] = []
    for model, batches in (
        (SIMPLIFIED, options.random),
        *((FULL, batches) for batches in options.batches_of(placement)),
    ):
        run = simplified_gradient if model == SIMPLIFIED else full_gradient
        undefined = mixes and model == SIMPLIFIED
        for layers in options.layers:
            for seed in options.seeds_of(placement):
                found, length = run(options, placement, layers, batches, seed)
                rows.append(
                    {
                        "model": model,
                        "tokens": batches.kind,
                        "placement": placement,
                        "layers": layers,
                        "seed": seed,
                        "of_positions": None if undefined else found.of_positions,
                        "of_mean": found.of_mean,
                        "squared_length": length,
                    }
                )
    return rows


class _Lengths:
    """A hook of the last layer: the mean of |x|^2 / d over the real positions of its output."""

    def __init__(self, real: Tensor, dim: int) -> None:
        self.real, self.dim, self.found = real, dim, float("nan")

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        x = output[0] if isinstance(output, tuple) else output
        # a layer may give more than its output, which comes first
        self.found = float(x.detach()[..., : self.dim][self.real].square().mean())


def simplified_gradient(
    options: Options, placement: str, layers: int, batches: Batches, seed: int
) -> tuple[LastLayer, float]:
    """Of a stack in the simplified setting, and |x|^2 / d of its last layer."""
    torch.manual_seed(seed)
    words = batches.source_words
    stack = simplified(placement, options.norm_type, layers, options.dim, batches)
    tokens, matrix = batches.draw(seed).source, random_output_matrix(len(words), options.dim)
    labels = uniform_labels(tokens, words)
    lengths = _Lengths(labels.ne(words.pad()), options.dim)

    def logits() -> Tensor:
        return stack(tokens)["encoder_out"][0] @ matrix.t()

    return _measured(stack.layers[-1], logits, labels, words.pad(), lengths, stack)


def full_gradient(
    options: Options, placement: str, layers: int, batches: Batches, seed: int
) -> tuple[LastLayer, float]:
    """Of the decoder of a full model, and |x|^2 / d of its last layer."""
    torch.manual_seed(seed)
    model = full(placement, options.norm_type, layers, options.full_dim, batches)
    batch, pad = batches.draw(seed), batches.target_words.pad()
    lengths = _Lengths(batch.target.ne(pad).t(), options.full_dim)

    def logits() -> Tensor:
        found: Tensor = model(batch.source, None, batch.previous)[0]
        return found

    return _measured(model.decoder.layers[-1], logits, batch.target, pad, lengths, model)


def _measured(
    last: Any, logits: Any, labels: Tensor, pad: int, lengths: _Lengths, model: nn.Module
) -> tuple[LastLayer, float]:
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # the graph begins at W^2, so the pass is a short one
    last.register_forward_hook(lengths)
    return last_layer_gradient(last.fc2, logits, labels, pad), lengths.found


def exponents(rows: Sequence[Row], of: str, over: str = "layers") -> Sample | None:
    """p of ``of`` ~ ``over``^p in rows of one model and placement; None where it has none."""
    if any(row[of] is None for row in rows):
        return None
    values = [row[over] for row in rows]
    if over == "squared_length" and max(values) < GROWS * min(values):
        return None
    return exponent(
        {
            seed: [(row[over], row[of]) for row in some]
            for (seed,), some in group(rows, "seed").items()
        }
    )


def find(rows: list[Row]) -> Findings:
    """The exponents of every placement, and what the theorem says of two of them."""
    sentences, tables = [], []
    for (model, tokens), of_model in group(rows, "model", "tokens").items():
        table: list[tuple[str, ...]] = []
        for (placement,), some in group(of_model, "placement").items():
            if placement in THEOREM:
                where = f"{model.capitalize()} model, {tokens} tokens, `{placement}`"
                sentences.append(verdict(where, some))
            table.append(
                (
                    placement,
                    with_interval(exponents(some, "of_positions")),
                    with_interval(exponents(some, "of_mean")),
                    with_interval(exponents(some, "squared_length")),
                    with_interval(exponents(some, "of_positions", over="squared_length")),
                )
            )
        header = (
            f"{model} model, {tokens} tokens",
            "exponent, mean of positions",
            "exponent, of the mean",
            "exponent of |x_L|^2",
            "exponent in |x_L|^2",
        )
        tables.append(Table(header, table))
    return Findings(sentences, tables)


def verdict(where: str, rows: Sequence[Row]) -> str:
    """What the exponents of one placement say of the theorem, and of why they differ."""
    stated = THEOREM[rows[0]["placement"]]
    found = {text: exponents(rows, of) for text, of in NORMS.items()}
    known = [f"{text} {compare(one, stated)}" for text, one in found.items() if one is not None]
    if not known:
        return f"{where}: a gradient is 0, so there is no exponent."
    said = f"{where}, where the theorem has {stated:g}: the exponent of {'; that of '.join(known)}"
    by_length = exponents(rows, "of_positions", over="squared_length")
    if by_length is not None:
        least, most = (pick(row["squared_length"] for row in rows) for pick in (min, max))
        said += (
            f". Over these L, |x_L|^2 / d grows from {least:.2f} to {most:.2f}, with an exponent "
            f"of {with_interval(exponents(rows, 'squared_length'))}; in |x_L|^2 the gradient has "
            f"an exponent of {with_interval(by_length)}"
        )
    return said + "."


def compare(found: Sample, stated: float) -> str:
    """The exponent, whether it is near the theorem's, and whether its interval contains that."""
    said = f"is {with_interval(found)}, "
    said += f"{'within' if abs(found.mean - stated) <= NEAR else 'not within'} {NEAR} of {stated:g}"
    held = contains(found, stated)
    if held is None:
        return said
    return said + f", and its interval {'contains' if held else 'does not contain'} {stated:g}"


def plot(rows: list[Row], axes: Any) -> None:
    """The simplified setting: gradient over L, a line a placement; means over seeds."""
    first = rows[0]
    shown = [row for row in rows if all(row[k] == first[k] for k in ("model", "tokens"))]
    norm = "of_mean" if first["of_positions"] is None else "of_positions"
    for place, ((placement,), some) in enumerate(group(shown, "placement").items()):
        points = [
            (layers, sum(row[norm] for row in at) / len(at))
            for (layers,), at in group(some, "layers").items()
            if all(row[norm] for row in at)
        ]
        if points:
            axes.plot(*zip(*points), **style(place), marker="o", markersize=2, label=placement)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("layers L")
    axes.set_ylabel("gradient of the last W^2")
    if axes.lines:
        axes.legend(loc="lower left", fontsize=7, ncols=2)


CLAIM = Claim(
    name="last-layer",
    title="The gradient of the last layer",
    source="Xiong et al. 2020, Theorem 1",
    statement=(
        "The Frobenius norm of the gradient of W^2, the second matrix of the feed-forward network, "
        "in the last of L layers is `O(d sqrt(ln d))` under post-norm and `O(d sqrt(ln d / L))` "
        "under pre-norm: an exponent of L of 0 and of -1/2.",
    ),
    method=(
        "A line is fitted to the logarithms over L for each seed; the exponent is the mean of the "
        "slopes, with its 95 % interval over seeds. The interval says how well the slope over "
        "these L is known, not whether the gradient follows a power law. There are two norms of "
        "the gradient: the mean over the positions of a batch of the norm of the gradient of one "
        "position's loss, and the norm of the mean gradient of the batch. Where the hidden state "
        "x_L of the last layer grows, a table also has the exponent of its squared length in L, "
        "and that of the gradient in its squared length.",
    ),
    caption="Gradient of the last layer's W^2 in the simplified setting, mean over positions.",
    measure=measure,
    find=find,
    plot=plot,
)
