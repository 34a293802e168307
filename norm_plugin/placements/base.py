"""What a placement is: how the branches of a layer join its residual stream.

A branch f is an attention or a feed-forward network without its norms. It ends in a linear map:
f(y) = W h(y), where h(y) are the heads of an attention, side by side, or the activations of a
feed-forward network. With x the input of the branch, every placement computes

    y  = enter(norm_input(x))
    fx = norm_output(W norm_inner(inside(h(y))))
    x' = norm_sum(join(x, fx))

and says which of the four norms exist (``norms``) and how the branch joins the stream (``join``,
x + f by default). ``enter`` and ``inside`` change nothing by default. ``begin`` and ``end`` see the
stream before the first branch of a layer and after its last one; ``before_final_norm`` and
``after_final_norm`` see it around the norm after the stack.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor, nn

INPUT, INNER, OUTPUT, SUM = "input", "inner", "output", "sum"
"""The positions of a norm in a branch."""
FINAL = "final"
"""The position of the norm after a stack."""
BRANCHES = ("self", "cross", "ffn")
"""The branches that a layer can have, in their order."""
ON_THE_STREAM = "its output is the residual stream, not only the input of linear maps"

PLACEMENTS: dict[str, type[Placement]] = {}
"""Every placement by the word of ``--norm-placement``, in the order of registration."""
REFUSED: dict[str, tuple[type[Placement], str]] = {}
"""Placements that no layer can have, with the reason, which whoever chooses one is told."""


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer stands in its model.

    Attributes:
        side: ``encoder`` or ``decoder``.
        index: l, its number in the stack, from 1.
        encoder_layers: N; 0 in a model without an encoder.
        decoder_layers: M; 0 in a model without a decoder.
        dim: C, the channels of the residual stream.
        branches: those of :data:`BRANCHES` that the layer has, in their order.
        heads: those of each attention.
    """

    side: str
    index: int
    encoder_layers: int
    decoder_layers: int
    dim: int
    branches: tuple[str, ...]
    heads: int = 1

    @property
    def layers(self) -> int:
        """L, the number of layers of the stack."""
        return self.encoder_layers if self.side == "encoder" else self.decoder_layers

    @property
    def branches_of_stack(self) -> int:
        """The number of branches of the stack."""
        return self.layers * len(self.branches)


class Placement(nn.Module):
    """A placement in one layer. Parameters of a subclass are trained and saved with the layer.

    Attributes:
        equation, paper, paper_read: set by :func:`register_placement`.
        norms: the positions at which each branch of a layer has a norm; a placement whose branches
            differ overrides :meth:`norms_of`.
        final_norm: whether a norm stands after the stack.
        embedding_norm: whether a norm of the embeddings stands before it, without
            ``--layernorm-embedding`` too.
        needs_bounded_norms: why no norm of the placement may be one whose output grows with its
            input without bound; empty: it may.
        norm_before_dropout: whether dropout comes after the norm at OUTPUT of a branch, not before.
        normalize_before: the value of fairseq's flag of that name that asks for this placement;
            None where stock fairseq does not have it.
    """

    equation: ClassVar[str]
    paper: ClassVar[str]
    paper_read: ClassVar[bool]
    norms: ClassVar[tuple[str, ...]] = ()
    final_norm: ClassVar[bool] = False
    embedding_norm: ClassVar[bool] = False
    needs_bounded_norms: ClassVar[str] = ""
    norm_before_dropout: ClassVar[bool] = False
    normalize_before: ClassVar[bool | None] = None

    def __init__(self, place: LayerPlace) -> None:
        super().__init__()
        self.place = place

    @classmethod
    def at(cls, place: LayerPlace) -> type[Placement]:
        """The placement of the layer at ``place``, for one that differs between layers."""
        return cls

    @classmethod
    def norms_of(cls, branch: str) -> tuple[str, ...]:
        """The positions at which ``branch`` has a norm. All branches have one at INPUT, or none."""
        return cls.norms

    def follow(self, below: Placement) -> None:
        """Called once, when the stack is built, with the placement of the layer below."""
        return

    def needs_whole_stack(self) -> bool:
        """Whether LayerDrop must leave out no layer of the next training forward."""
        return False

    def begin(self, x: Tensor) -> Tensor:
        """The stream before the first branch of the layer, from its input x, (T, B, C)."""
        return x

    def enter(self, y: Tensor, branch: str) -> Tensor:
        """The input of a branch, from the output y of its norm at INPUT, (T, B, C).

        It multiplies each channel by a constant; folding a norm counts on that.
        """
        return y

    def inside(self, h: Tensor, branch: str) -> Tensor:
        """The input of the last map of a branch, from h(y), (T, B, C) or (T, B, FFN).

        Where there is a norm at INNER, it comes after this.
        """
        return h

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        """The stream x and the output of a branch, both (T, B, C), to the new stream."""
        return x + fx

    def end(self, x: Tensor) -> Tensor:
        """The output of the layer, from the stream after its last branch, (T, B, C)."""
        return x

    @staticmethod
    def before_final_norm(x: Tensor, dim: int) -> Tensor:
        """The input of the final norm, (T, B, dim), from the output x of the last layer.

        LayerDrop may have left out every layer; x is then the embeddings.
        """
        return x

    @staticmethod
    def after_final_norm(x: Tensor, y: Tensor) -> Tensor:
        """The output of the stack, from that of the last layer, x, and of the final norm, y."""
        return y

    @staticmethod
    def initialize(layer: nn.Module, place: LayerPlace) -> None:
        """Draw the weights of a layer that fairseq has built as this placement wants them.

        A placement that overrides it makes its name a word of ``--norm-init``, and its default.
        """

    @classmethod
    def refuses(cls, initialization: str) -> str:
        """Why this placement cannot train from a word of ``--norm-init``; empty: it can."""
        return ""

    @classmethod
    def why_it_stays(cls, position: str) -> str:
        """Why a norm at ``position`` cannot be folded into linear maps; empty: it can.

        The output of a norm on the input of a branch, before the last map of a branch, or after
        the stack goes into linear maps only; the input of one on the output of a branch comes from
        the last map.
        """
        return ON_THE_STREAM if position == SUM else ""


def overrides(cls: type[Placement], method: str) -> bool:
    """Whether ``cls`` defines a method of :class:`Placement` anew."""
    return getattr(cls, method) is not getattr(Placement, method)


PlacementClass = TypeVar("PlacementClass", bound=type[Placement])


def register_placement(
    name: str, *, equation: str, paper: str, paper_read: bool = True
) -> Callable[[PlacementClass], PlacementClass]:
    """Class decorator: make a :class:`Placement` known as ``--norm-placement name``.

    Args:
        name: the word of the flag.
        equation: one line; f is a branch without norms, x its input.
        paper: authors, year and place.
        paper_read: False where the paper itself could not be read; the placement's file says what
            it follows instead.

    A placement that cannot be built is refused with a warning, and again where it is chosen. So one
    wrong file does not keep the other files of its folder from being imported.

    Raises:
        ValueError: the name is taken.
    """

    def register(cls: PlacementClass) -> PlacementClass:
        if name in PLACEMENTS:
            raise ValueError(
                f"placement {name!r} is registered twice: {PLACEMENTS[name]} and {cls}"
            )
        cls.equation, cls.paper, cls.paper_read = equation, paper, paper_read
        reason = why_refused(cls)
        if reason:
            REFUSED[name] = (cls, reason)
            warnings.warn(f"placement {name!r} is refused: {reason}", stacklevel=2)
        else:
            PLACEMENTS[name] = cls
        return cls

    return register


def why_refused(cls: type[Placement]) -> str:
    """Why no layer can have the placement ``cls``; empty: it can.

    A position is unknown, or only some branches have a norm at INPUT.
    """
    by_branch = {branch: cls.norms_of(branch) for branch in BRANCHES}
    unknown = {position for norms in by_branch.values() for position in norms}
    unknown -= {INPUT, INNER, OUTPUT, SUM}
    if unknown:
        return (
            f"{cls.__name__}.norms names {', '.join(sorted(unknown))}; a branch has a norm at "
            f"{INPUT}, {INNER}, {OUTPUT} or {SUM}"
        )
    before = [branch for branch in BRANCHES if INPUT in by_branch[branch]]
    after = [branch for branch in BRANCHES if INPUT not in by_branch[branch]]
    if before and after:
        return (
            f"{cls.__name__}.norms_of gives {' and '.join(before)} a norm at {INPUT}, and "
            f"{' and '.join(after)} none. A layer of fairseq has one switch, normalize_before, "
            "which puts the norm before all of its branches or after all of them. Give all "
            "branches a norm at input, or none; layers may differ, see Placement.at"
        )
    return ""


def placement_class(name: str) -> type[Placement]:
    """The placement ``name``; raises ValueError if it was refused, or listing all if unknown."""
    if name in REFUSED:
        raise ValueError(f"placement {name!r} is refused: {REFUSED[name][1]}")
    if name not in PLACEMENTS:
        raise ValueError(f"norm_placement is {name!r}; choose from {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]
