"""The gradient that passes through one module, told from what else flows into its input.

The input of a norm often goes into a residual connection too, and its gradient is the sum of both.
Here the nodes of the autograd graph that hand a gradient from the module back to its input are
found, and their gradients are added up. Nothing is put into the graph, so the run stays bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

Gradients = tuple[Tensor | None, ...]


def edges_between(x: Tensor, y: Tensor) -> list[tuple[Node, int]]:
    """The nodes between ``x`` and ``y`` that hand a gradient to ``x``, and at which place."""
    target = get_gradient_edge(x)
    found, seen, waiting = [], {target.node}, [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for index, (following, number) in enumerate(node.next_functions):
            if following is target.node and number == target.output_nr:
                found.append((node, index))
            waiting.append(following)
    return found


def on_gradient_between(x: Tensor, y: Tensor, see: Callable[[Tensor], None]) -> None:
    """Call ``see`` in the backward pass with the part of dL/dx that comes from ``y``.

    It is not called where no gradient arrives. Both must be in the graph, and differ.
    """
    edges = edges_between(x, y)
    total = _Total(len(edges), see)
    for node, index in edges:
        node.register_hook(partial(total.add, index))


class _Total:
    """The sum of the gradients of some edges, handed over when all of them are there."""

    def __init__(self, edges: int, see: Callable[[Tensor], None]) -> None:
        self.missing, self.see = edges, see
        self.sum: Tensor | None = None

    def add(self, index: int, to_inputs: Gradients, _: Any) -> None:
        """The hook of a node. to_inputs: what it hands on."""
        grad = to_inputs[index]
        if grad is not None:
            self.sum = grad.detach() if self.sum is None else self.sum + grad.detach()
        self.missing -= 1
        if self.missing == 0 and self.sum is not None:
            self.see(self.sum)
            self.sum = None
