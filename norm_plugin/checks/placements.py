"""The checks of ``norm-plugin check-user-dir DIR`` for a placement.

The stacks follow the equations at the top of ``placements/base.py``. A branch is two linear maps
with a tanh between them, so positions are independent unless the placement mixes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from norm_plugin.checks.norms import close, expect
from norm_plugin.norms import build_norm
from norm_plugin.placements import (
    BRANCHES,
    IN_ATTENTION,
    INNER,
    INPUT,
    OUTPUT,
    STREAM,
    SUM,
    LayerPlace,
    Placement,
    Stream,
    split_streams,
)

DIM, TIME, BATCH, HEADS, LAYERS = 24, 5, 3, 4, 4
STACKS = {
    "an encoder": ("encoder", LAYERS, LAYERS, ("self", "ffn")),
    "a decoder": ("decoder", LAYERS, LAYERS, BRANCHES),
    "a language model": ("decoder", 0, LAYERS, ("self", "ffn")),
}
"""The side, the numbers of encoder and decoder layers, and the branches of each layer."""


class Branch(nn.Module):
    """A branch with the norms that a placement defines."""

    def __init__(self, cls: type[Placement], branch: str) -> None:
        super().__init__()
        self.branch, inner = branch, 2 * DIM if branch == "ffn" else DIM
        widths = {INNER: inner}
        self.norms = nn.ModuleDict(
            {at: build_norm("layernorm", widths.get(at, DIM)) for at in cls.norms_of(branch)}
        )
        self.first, self.last = nn.Linear(DIM, inner), nn.Linear(inner, DIM)

    def forward(self, x: Stream, placement: Placement) -> Stream:
        """Return the new stream. x: (T, B, C), or a tuple that begins with it."""
        x, z = placement.read(
            self.norm(STREAM, x), self.branch, lambda branch, word, y: self.norm(word, y)
        )
        h = self.first(placement.enter(self.norm(INPUT, z), self.branch))
        for head in IN_ATTENTION:  # there is no attention: apply its norms one after the other
            h = self.norm(head, h)
        h = placement.inside(torch.tanh(h), self.branch)
        fx = self.norm(OUTPUT, self.last(self.norm(INNER, h)))
        return self.norm(SUM, placement.join(x, fx, self.branch))

    def norm(self, slot: str, x: Any) -> Any:
        """Return the output of the norm at a slot, or x if there is none; of a tuple, the first."""
        if slot not in self.norms:
            return x
        return (self.norms[slot](x[0]), *x[1:]) if isinstance(x, tuple) else self.norms[slot](x)


class Stack(nn.Module):
    """The layers of ``kind``, one of STACKS, with a placement."""

    def __init__(self, cls: type[Placement], kind: str) -> None:
        super().__init__()
        side, encoder_layers, decoder_layers, branches = STACKS[kind]
        self.cls = cls
        self.layers: Any = nn.ModuleList()
        placements = []
        for index in range(1, LAYERS + 1):
            place = LayerPlace(side, index, encoder_layers, decoder_layers, DIM, branches, HEADS)
            at = cls.at(place)
            layer = nn.ModuleDict({branch: Branch(at, branch) for branch in branches})
            self.layers.append(layer)
            placements.append(at(place))
        for below, above in pairwise(placements):
            above.set_layer_below(below)
        self.placements: Any = nn.ModuleList(placements)
        self.final_norms = nn.ModuleDict(
            {word: build_norm("layernorm", DIM) for word in cls.final_norms}
        )
        self.final_norm = build_norm("layernorm", DIM) if cls.final_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the stack, given the embeddings x, (T, B, C)."""
        for placement, branches in zip(self.placements, self.layers):
            x = placement.begin(x)
            for branch in branches.values():
                x = branch(x, placement)
            x = placement.end(x)
        streams = split_streams(x, DIM, self.cls.streams)
        x = self.cls.before_final_norm(streams, lambda word, z: self.final_norms[word](z))
        return self.cls.after_final_norm(streams, self.final_norm(x))


def _stacks(cls: type[Placement]) -> Iterator[tuple[str, Stack]]:
    """Yield a stack of each kind after one training forward, in which a placement may measure."""
    for kind in STACKS:
        torch.manual_seed(0)
        stack = Stack(cls, kind)
        stack(_batch(1))
        for parameter in stack.placements.parameters():  # an initial 0 would hide a branch
            nn.init.normal_(parameter, 1.0, 0.1)
        yield kind, stack


def _batch(seed: int = 0) -> Tensor:
    """Return x, (T, B, C)."""
    return torch.randn(TIME, BATCH, DIM, generator=torch.Generator().manual_seed(seed))


def check_branches(cls: type[Placement]) -> None:
    """The placement accepts every kind of layer, keeps the shape, and is finite."""
    for kind, (*_, branches) in STACKS.items():
        try:
            y = Stack(cls, kind)(_batch())
        except (LookupError, AttributeError) as error:  # ParameterDict raises the latter
            expect(
                False,
                f"{type(error).__name__} ({error}) in {kind}, whose layers have the branches "
                f"{', '.join(branches)}; create what belongs to a branch for place.branches",
            )
        shape = (TIME, BATCH, DIM)
        expect(y.shape == shape, f"{kind}: input shape {shape}, output shape {tuple(y.shape)}")
        expect(bool(y.isfinite().all()), f"{kind}: a finite input gives NaN or infinite values")


def check_gradient(cls: type[Placement]) -> None:
    """The input, each branch and each parameter of the placement have a finite gradient."""
    for kind, stack in _stacks(cls):
        x = _batch().requires_grad_()
        (stack(x) * _batch(2)).sum().backward()
        gradients: dict[str, Tensor | None] = {"the input": x.grad}
        for name, parameter in stack.named_parameters():
            if name.startswith("placements."):
                gradients[f"its parameter {name.split('.', 2)[2]}"] = parameter.grad
        for index, branches in enumerate(stack.layers, start=1):
            for branch in branches.values():
                gradients[f"branch {branch.branch} of layer {index}"] = branch.last.weight.grad
        for name, gradient in gradients.items():
            expect(gradient is not None and bool(gradient.any()), f"{kind}: {name} has no gradient")
            finite = gradient is not None and bool(gradient.isfinite().all())
            expect(finite, f"{kind}: the gradient of {name} is NaN or infinite")


def check_positions(cls: type[Placement]) -> None:
    """No position affects another, in training and in inference; otherwise a decoder would leak."""
    x = _batch()
    other = x.clone()
    other[1, 0] = 3 * x[1, 0] + 2
    elsewhere = torch.ones(TIME, BATCH, dtype=torch.bool)
    elsewhere[1, 0] = False
    for kind, stack in _stacks(cls):
        for training in (True, False):
            y, z = (stack.train(training)(input_)[elsewhere] for input_ in (x, other))
            expect(close(y, z), f"{kind}: one position changes the output at others")


def check_state(cls: type[Placement]) -> None:
    """A state dict holds everything that the next step depends on, and a stack can be copied."""
    for kind, stack in _stacks(cls):
        torch.manual_seed(1)
        loaded = Stack(cls, kind)
        loaded.load_state_dict(stack.state_dict())
        y, z, twin = (each(_batch()) for each in (stack, loaded, copy.deepcopy(stack)))
        expect(
            close(y, z) and close(y, twin),
            f"{kind}: after loading a state dict, the next step differs; keep what is learned in "
            "parameters, and what is measured in buffers",
        )


CHECKS: dict[str, Callable[[type[Placement]], None]] = {
    "branches": check_branches,
    "gradient": check_gradient,
    "positions": check_positions,
    "state": check_state,
}
