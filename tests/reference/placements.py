"""The equation of every placement, written out over a whole stack, in float64 torch.

A transcription takes x, (T, B, C), and a :class:`Stack`, and returns the output of the stack. It
knows nothing of the package: norms, branches and parameters are handed to it.

Each branch f has f(x) = f.W(f.h(x)), its norms f.input, f.inner, f.output, f.sum and so on, the
number of its layer f.l, from 1, and what the placement learned there, f.learned. Norms of queries,
keys and values are part of f.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import Any

import torch

EQUATIONS: dict[str, Callable[..., Any]] = {}
"""The functions from x and a stack to the output of the stack, by name of placement."""
GAINS: dict[str, Callable[..., float]] = {}
"""The gain of W_V, W_O, W_1 and W_2 at the start, from side, N and M, by the name.

N or M is 0 where that stack does not exist."""


@dataclass
class Branch:
    """A branch of a layer; see above."""

    name: str
    h: Callable[..., Any]
    W: Callable[..., Any]
    l: int  # noqa: E741 -- the paper's letter
    learned: dict[str, Any]
    norms: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x):
        return self.W(self.h(x))

    def __getattr__(self, position):
        return self.norms[position]


@dataclass
class Stack:
    """The layers, each a list of branches, the final norm, the numbers of layers N and M, and the
    placement's own norms after the stack."""

    layers: list[list[Branch]]
    final: Callable[..., Any] | None
    side: str
    N: int
    M: int
    own: dict[str, Callable[..., Any]] = field(default_factory=dict)


def transcribes(name):
    """Decorator of the transcription of placement ``name``."""

    def keep(equation):
        EQUATIONS[name] = equation
        return equation

    return keep


def branch_by_branch(name, step, final_norm=False):
    """The transcription of a placement that treats each branch alike: x' = step(x, f)."""

    @transcribes(name)
    def equation(x, stack):
        for layer in stack.layers:
            for f in layer:
                x = step(x, f)
        return stack.final(x) if final_norm else x


branch_by_branch("post", lambda x, f: f.sum(x + f(x)))
branch_by_branch("pre", lambda x, f: x + f(f.input(x)), final_norm=True)
branch_by_branch("res-post", lambda x, f: x + f.output(f(x)), final_norm=True)
branch_by_branch("sandwich", lambda x, f: x + f.output(f(f.input(x))), final_norm=True)
branch_by_branch("peri-ln", lambda x, f: x + f.output(f(f.input(x))), final_norm=True)
branch_by_branch("scaled-pre", lambda x, f: x + f(f.input(x) / sqrt(f.l)), final_norm=True)
branch_by_branch("rezero", lambda x, f: x + f.learned["a"] * f(x))
branch_by_branch("rezero-pre", lambda x, f: x + f.learned["a"] * f(f.input(x)), final_norm=True)
branch_by_branch(
    "layer-scale", lambda x, f: x + f.learned[f"scale.{f.name}"] * f(f.input(x)), final_norm=True
)
branch_by_branch("admin-torch", lambda x, f: f.sum(f.learned[f"omega.{f.name}"] * x + f(x)))
branch_by_branch("sublayer", lambda x, f: x + f.W(f.inner(f.h(f.input(x)))), final_norm=True)


@transcribes("deepnorm")
def deepnorm(x, stack):
    n, m = stack.N, stack.M
    alpha = {"encoder": 0.81 * (n**4 * m) ** 0.0625, "decoder": (3 * m) ** 0.25}[stack.side]
    if n == 0 or m == 0:
        alpha = (2 * max(n, m)) ** 0.25
    for layer in stack.layers:
        for f in layer:
            x = f.sum(alpha * x + f(x))
    return x


def gain_of(name):
    """Decorator of the gain of placement ``name``."""

    def keep(gain):
        GAINS[name] = gain
        return gain

    return keep


@gain_of("deepnorm")
def deepnorm_gain(side, n, m):
    if n == 0 or m == 0:
        return (8 * max(n, m)) ** -0.25
    return 0.87 * (n**4 * m) ** -0.0625 if side == "encoder" else (12 * m) ** -0.25


@gain_of("sublayer")
def sublayer_gain(side, n, m):
    if n == 0 or m == 0:
        return sqrt(log(2 * max(n, m)))
    return sqrt(log(3 * m) * log(2 * n) / 3) if side == "encoder" else sqrt(log(3 * m))


@transcribes("mix")
def mix(x, stack):
    for layer in stack.layers:
        for f in layer:
            post = f.l <= max(1, len(stack.layers) // 4)
            x = f.sum(x + f(x)) if post else x + f(f.input(x))
    return stack.final(x)


@transcribes("b2t")
def b2t(x, stack):
    for layer in stack.layers:
        x_layer = x
        for f in layer:
            x = f.sum(x_layer + x + f(x)) if f.name == "ffn" else f.sum(x + f(x))
    return x


@transcribes("span")
def span(x, stack):
    for layer in stack.layers:
        x_layer = x
        for f in layer:
            z = f.input(x) if (f.name, layer) == ("self", stack.layers[0]) else x
            x = f.sum((x_layer if f.name == "ffn" else x) + f(z))
    return x


@transcribes("keel")
def keel(x, stack):
    n = sum(len(layer) for layer in stack.layers)
    for layer in stack.layers:
        alpha = 1 if layer is stack.layers[0] else n
        for f in layer:
            x = alpha * x + f(f.input(x))
            x = x if (f.name, alpha) == ("self", 1) else f.sum(x)
    return stack.final(x)


@transcribes("residual")
def residual(x, stack):
    d = x
    for layer in stack.layers:
        for f in layer:
            fx = f(x)
            x, d = f.sum(x + fx), d + fx
    return x + stack.final(d)


@transcribes("hybrid")
def hybrid(x, stack):
    for layer in stack.layers:
        for f in layer:
            y = f.stream(x) if f.name == "ffn" else x
            x = y + f(y)
    return stack.final(x)


@transcribes("hybrid-star")
def hybrid_star(x, stack):
    first, *others = stack.layers
    for f in first:
        x = x + f(f.input(x))
    return hybrid(x, replace(stack, layers=others))


@transcribes("siamese")
def siamese(x, stack):
    y = x
    for layer in stack.layers:
        for f in layer:
            x = f.stream(x)
            z = f(f.input(x + f.other(y)))
            x, y = x + z / sqrt(2 * f.l), y + z
    return stack.final(stack.own["final_first_norm"](x) + stack.own["final_second_norm"](y))


@transcribes("hyper")
@transcribes("hyper-dynamic")
def hyper(x, stack):
    n, h = 4, [x] * 4
    for layer in stack.layers:
        for f in layer:
            alpha = [[f.learned[f"alpha.{f.name}"][i, j] for j in range(n + 1)] for i in range(n)]
            beta = [f.learned[f"beta.{f.name}"][i] for i in range(n)]
            if "streams" in f.norms:
                w, s = f.learned[f"mix.{f.name}"], f.learned[f"scale.{f.name}"]
                for i in range(n):
                    y = f.streams(h[i])
                    for j in range(n + 1):
                        along = (y * w[:, j]).sum(-1, keepdim=True)
                        alpha[i][j] = alpha[i][j] + s[0] * torch.tanh(along)
                    along = (y * w[:, n + 1]).sum(-1, keepdim=True)
                    beta[i] = beta[i] + s[1] * torch.tanh(along)
            fz = f(f.input(sum(alpha[i][0] * h[i] for i in range(n))))
            h = [sum(alpha[i][j + 1] * h[i] for i in range(n)) + beta[j] * fz for j in range(n)]
    return stack.final(sum(h))


@transcribes("normformer")
@transcribes("normformer-res-scale")
def normformer(x, stack):
    for layer in stack.layers:
        for f in layer:
            if f.name == "ffn":
                r = f.learned.get("res_scale", 1)
                x = r * x + f.W(f.inner(f.h(f.input(x))))
            else:
                s = f.learned[f"head_scale.{f.name}"]
                each = f.h(f.input(x)).chunk(len(s), dim=-1)
                scaled = torch.cat([s[i] * each[i] for i in range(len(s))], dim=-1)
                x = x + f.output(f.W(scaled))
    return stack.final(x)


@transcribes("admin")
def admin(x, stack):
    for layer in stack.layers:
        for i, f in enumerate(layer):
            omega = f.learned["start"][i] + f.learned[f"change.{f.name}"]
            x = f.sum(omega * x + f(x))
    return x
