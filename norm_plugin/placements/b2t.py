"""B2T: post-norm with a connection from the bottom of each layer to its top.

Source: Takase et al. 2023, "B2T Connection: Serving Stability and Performance in Deep
Transformers", Findings of ACL 2023, arXiv 2206.00330. The attentions are as under ``post``. The
last branch, the feed-forward network, also adds the input of the layer, before any norm of the
layer: norm(x_layer + x + f(x)). The paper was not read for this file; the authors' code
(takase/b2t_connection, transformer_layer.py) was read, and agrees. With the connection, it always
divides the initial weights of every linear map of a layer by the root of the number of layers of
the stack.
"""

from __future__ import annotations

from torch import Tensor, nn

from norm_plugin.placements.base import (
    SUM,
    LayerPlace,
    Placement,
    Stream,
    fairseqs_modules,
    register_placement,
)


@register_placement(
    "b2t",
    equation="attention: norm(x + f(x));  FFN: norm(x_layer + x + f(x))",
    paper="Takase et al. 2023, B2T Connection",
    paper_read=False,
)
class BottomToTop(Placement):
    """Post-norm; x_layer, the input of the layer, is added again before the layer's last norm."""

    norms = (SUM,)

    @staticmethod
    def initialize(layer: nn.Module, place: LayerPlace) -> None:
        """Divide fairseq's initial weights by sqrt(L), with L layers in the stack; keep biases."""
        for module in fairseqs_modules(layer):
            if isinstance(module, nn.Linear):
                module.weight.data.mul_(place.layers ** (-1 / 2))

    def begin(self, x: Tensor) -> Stream:
        return x, x

    def join(self, x: Stream, fx: Tensor, branch: str) -> Stream:
        x, x_layer = x
        return (x_layer + x + fx if branch == "ffn" else x + fx), x_layer
