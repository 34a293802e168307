"""What a placement is: how the branches of a layer join its residual stream.

A branch f is an attention or a feed-forward network without its norms. With x the input of the
branch, every placement computes

    x' = norm_sum(join(x, norm_output(f(norm_input(x)))))

and says which of the three norms exist (``norms``) and how the branch joins the stream (``join``,
x + f by default). ``begin`` and ``end`` see the stream before the first branch of a layer and
after its last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor, nn

INPUT, OUTPUT, SUM = "input", "output", "sum"
"""The positions of a norm in a branch."""
ON_THE_STREAM = "its output is the residual stream, not only the input of linear maps"

PLACEMENTS: dict[str, type[Placement]] = {}
"""Every placement by the word of ``--norm-placement``, in the order of registration."""


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer stands in its model.

    Attributes:
        side: ``encoder`` or ``decoder``.
        index: l, its number in the stack, from 1.
        encoder_layers: N; 0 in a model without an encoder.
        decoder_layers: M; 0 in a model without a decoder.
        dim: C, the channels of the residual stream.
        branches: ``self``, ``cross`` and ``ffn``, as far as the layer has them, in their order.
    """

    side: str
    index: int
    encoder_layers: int
    decoder_layers: int
    dim: int
    branches: tuple[str, ...]

    @property
    def layers(self) -> int:
        """L, the number of layers of the stack."""
        return self.encoder_layers if self.side == "encoder" else self.decoder_layers


class Placement(nn.Module):
    """A placement in one layer. Parameters of a subclass are trained and saved with the layer.

    Attributes:
        equation, paper: set by :func:`register_placement`.
        norms: the positions at which each branch of a layer has a norm.
        final_norm: whether a norm stands after the stack.
        normalize_before: the value of fairseq's flag of that name that asks for this placement;
            None where stock fairseq does not have it.
    """

    equation: ClassVar[str]
    paper: ClassVar[str]
    norms: ClassVar[tuple[str, ...]] = ()
    final_norm: ClassVar[bool] = False
    normalize_before: ClassVar[bool | None] = None

    def __init__(self, place: LayerPlace) -> None:
        super().__init__()
        self.place = place

    @classmethod
    def at(cls, place: LayerPlace) -> type[Placement]:
        """The placement of the layer at ``place``, for one that differs between layers."""
        return cls

    def begin(self, x: Tensor) -> Tensor:
        """The stream before the first branch of the layer, from its input x, (T, B, C)."""
        return x

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        """The stream x and the output of a branch, both (T, B, C), to the new stream."""
        return x + fx

    def end(self, x: Tensor) -> Tensor:
        """The output of the layer, from the stream after its last branch, (T, B, C)."""
        return x

    @staticmethod
    def initialize(layer: nn.Module, place: LayerPlace) -> None:
        """Draw the weights of a layer that fairseq has built as this placement wants them.

        A placement that overrides it makes its name a word of ``--norm-init``, and its default.
        """

    @classmethod
    def why_it_stays(cls, position: str) -> str:
        """Why a norm at ``position`` cannot be folded into the linear maps after it; empty: it can.

        The output of a norm on the input of a branch goes into linear maps only.
        """
        return "" if position == INPUT else ON_THE_STREAM


PlacementClass = TypeVar("PlacementClass", bound=type[Placement])


def register_placement(
    name: str, *, equation: str, paper: str
) -> Callable[[PlacementClass], PlacementClass]:
    """Class decorator: make a :class:`Placement` known as ``--norm-placement name``.

    Args:
        name: the word of the flag.
        equation: one line; f is a branch without norms, x its input.
        paper: authors, year and place.

    Raises:
        ValueError: the name is taken, or a position of a norm is unknown.
    """

    def register(cls: PlacementClass) -> PlacementClass:
        if name in PLACEMENTS:
            raise ValueError(
                f"placement {name!r} is registered twice: {PLACEMENTS[name]} and {cls}"
            )
        unknown = set(cls.norms) - {INPUT, OUTPUT, SUM}
        if unknown:
            raise ValueError(
                f"{cls.__name__}.norms names {', '.join(sorted(unknown))}; a branch has a norm at "
                f"{INPUT}, {OUTPUT} or {SUM}"
            )
        cls.equation, cls.paper = equation, paper
        PLACEMENTS[name] = cls
        return cls

    return register


def placement_class(name: str) -> type[Placement]:
    """The placement ``name``; raises ValueError listing all names if unknown."""
    if name not in PLACEMENTS:
        raise ValueError(f"norm_placement is {name!r}; choose from {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]
