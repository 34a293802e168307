"""KEEL: norm(alpha x + f(norm(x))), alpha the number of branches of the stack.

The first layer has alpha = 1, and no norm after the sum of its self-attention. The stack ends with
a norm.

Source: Chen and Wei 2026, "Post-LayerNorm Is Back: Stable, ExpressivE, and Deep", arXiv 2601.19895.
The paper was not read for this file. The equation and alpha are those of summaries of it; the first
layer is that of three third-party implementations, in forks of torchtitan, Megatron-LM and
OLMo-core, which agree. Two more differ: vit-pytorch has alpha in the first feed-forward network
too, and no norm after the stack; another has a pre-norm first layer. All are single stacks without
attention over an encoder, which is treated here as the self-attention is and counted in alpha.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.placements.base import INPUT, SUM, LayerPlace, Placement, register_placement


@register_placement(
    "keel",
    equation="norm(alpha x + f(norm(x))),  alpha the number of branches",
    paper="Chen and Wei 2026, KEEL",
    paper_read=False,
)
class Keel(Placement):
    """Post-norm with a norm on the input of each branch; alpha multiplies the stream."""

    norms = (INPUT, SUM)
    final_norm = True

    @classmethod
    def at(cls, place: LayerPlace) -> type[Placement]:
        return KeelFirst if place.index == 1 else Keel

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        return self.place.branches_of_stack * x + fx


class KeelFirst(Keel):
    """The first layer: alpha is 1, and the self-attention joins the stream as under ``pre``."""

    @classmethod
    def norms_of(cls, branch: str) -> tuple[str, ...]:
        return (INPUT,) if branch == "self" else (INPUT, SUM)

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        return x + fx
