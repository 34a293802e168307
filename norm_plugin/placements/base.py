"""The base class of placements: how the branches of a layer join its residual stream.

A branch f is an attention or a feed-forward network without its norms. It ends in a linear map:
f(y) = W h(y), where h(y) are the heads of an attention, side by side, or the activations of a
feed-forward network. With x the stream before the branch, every placement computes

    x, z = read(norm_stream(x))
    y  = enter(norm_input(z))
    fx = norm_output(W norm_inner(inside(h(y))))
    x' = norm_sum(join(x, fx))

and defines which of these norms exist (``norms``) and how the branch joins the stream (``join``,
x + f by default). In an attention there may also be norms of the queries, the keys and the values.
``read`` returns the stream and the input of the branch, both x by default; ``enter`` and ``inside``
change nothing by default. ``begin`` and ``end`` receive the stream before the first branch of a
layer and after its last one; ``before_final_norm`` and ``after_final_norm`` receive it around the
norm after the stack.

x may be a tuple from ``begin`` to ``end``: the stream and what else a forward of the layer needs,
such as the layer's input. A placement with several ``streams`` has the tuple of them. The norms at
STREAM and SUM are of the first. A placement may name norms of its own among ``norms`` and
``final_norms``, and call them. It keeps nothing of a forward on itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import check_name

STREAM, INPUT, INNER, OUTPUT, SUM = "stream", "input", "inner", "output", "sum"
"""The slots of a norm in a branch."""
IN_ATTENTION = ("query", "key", "value")
"""The slots of a norm in an attention, for its queries, keys and values."""
FINAL = "final"
"""The slot of the norm after a stack."""
BRANCHES = ("self", "cross", "ffn")
"""The branches that a layer can have, in order."""
ON_THE_STREAM = "its output is the residual stream, not only the input of linear maps"
NOT_ONLY_INTO_MAPS = "its output does not go into linear maps alone"

Stream = Any
"""A tensor (T, B, C), or a tuple of such tensors that begins with the stream."""
NormOfBranch = Callable[[str, str, Tensor], Tensor]

PLACEMENTS: dict[str, type[Placement]] = {}
"""Every placement by its name for ``--norm-placement``, in the order of registration."""


@dataclass(frozen=True)
class LayerPlace:
    """The position of a layer in its model.

    Attributes:
        side: ``encoder`` or ``decoder``.
        index: l, the number of the layer in its stack, from 1.
        encoder_layers: N; 0 in a model without an encoder.
        decoder_layers: M; 0 in a model without a decoder.
        dim: C, the channels of the residual stream.
        branches: those of :data:`BRANCHES` that the layer has, in order.
        heads: number of heads of each attention.
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
        """The number of branches of the stack, over all its layers."""
        return self.layers * len(self.branches)


class Placement(nn.Module):
    """A placement in one layer. The parameters of a subclass are trained and saved with the layer.

    Attributes:
        equation, paper, paper_read: set by :func:`register_placement`.
        norms: the slots at which each branch of a layer has a norm; a placement whose branches
            differ overrides :meth:`norms_of`. Any other word is a norm of the placement's own,
            which :meth:`read` calls.
        streams: number of residual streams between layers; all start as the embeddings.
        final_norm: whether the stack ends with a norm.
        final_norms: names of further norms after the stack, for :meth:`before_final_norm`.
        embedding_norm: whether a norm of the embeddings precedes the stack, even without
            ``--layernorm-embedding``.
        needs_bounded_norms: why the norms of the placement must not be ones whose output grows
            with the input without bound; empty: they may be.
        norm_before_dropout: whether dropout follows the norm at OUTPUT of a branch, or precedes it.
        normalize_before: the value of fairseq's flag of that name that selects this placement;
            None if stock fairseq does not have it.
    """

    equation: ClassVar[str]
    paper: ClassVar[str]
    paper_read: ClassVar[bool]
    norms: ClassVar[tuple[str, ...]] = ()
    streams: ClassVar[int] = 1
    final_norm: ClassVar[bool] = False
    final_norms: ClassVar[tuple[str, ...]] = ()
    embedding_norm: ClassVar[bool] = False
    needs_bounded_norms: ClassVar[str] = ""
    norm_before_dropout: ClassVar[bool] = False
    normalize_before: ClassVar[bool | None] = None

    def __init__(self, place: LayerPlace) -> None:
        super().__init__()
        self.place = place

    @classmethod
    def at(cls, place: LayerPlace) -> type[Placement]:
        """Return the placement of the layer at ``place``; override it if layers differ."""
        return cls

    @classmethod
    def norms_of(cls, branch: str) -> tuple[str, ...]:
        """Return the slots at which ``branch`` has a norm."""
        return cls.norms

    def set_layer_below(self, below: Placement) -> None:
        """Receive the placement of the layer below; called once, when the stack is built."""
        return

    def needs_whole_stack(self) -> bool:
        """Return whether LayerDrop must not drop any layer in the next training forward."""
        return False

    def begin(self, x: Tensor) -> Stream:
        """Return the stream before the first branch from the input x of the layer, (T, B, C)."""
        return split_streams(x, self.place.dim, self.streams) if self.streams > 1 else x

    def read(self, x: Stream, branch: str, norm: NormOfBranch) -> tuple[Stream, Tensor]:
        """Return the stream that the branch joins, and the branch's input before its norm at INPUT.

        Both are x, (T, B, C), by default. x comes after the norm at STREAM, if there is one.

        Args:
            norm: applies a norm, given the branch, the slot or word, and its input, (T, B, C).
        """
        return x, first_stream(x)

    def enter(self, y: Tensor, branch: str) -> Tensor:
        """Return the input of a branch, from the output y of its norm at INPUT, (T, B, C).

        It may only multiply each channel by a constant, because folding a norm relies on that.
        """
        return y

    def inside(self, h: Tensor, branch: str) -> Tensor:
        """Return the input of the last map of a branch, from h(y), (T, B, C) or (T, B, FFN).

        If there is a norm at INNER, it follows.
        """
        return h

    def join(self, x: Stream, fx: Tensor, branch: str) -> Stream:
        """Return the new stream from the stream x and the output fx of a branch, all (T, B, C)."""
        return (x[0] + fx, *x[1:]) if isinstance(x, tuple) else x + fx

    def end(self, x: Stream) -> Tensor:
        """Return the output of the layer, from the stream after its last branch, (T, B, C).

        Several streams are concatenated, (T, B, streams C), so that whatever recomputes the forward
        of a layer, as ``--checkpoint-activations`` does, gets the gradients of all of them.
        """
        return torch.cat(x, dim=-1) if self.streams > 1 else first_stream(x)

    @classmethod
    def acts_in_layers(cls) -> bool:
        """Return whether a method of the equation does more in a layer than return x or x + f."""
        methods = ("begin", "read", "enter", "inside", "join", "end")
        return cls.streams > 1 or any(overrides(cls, method) for method in methods)

    @classmethod
    def acts_at_final_norm(cls) -> bool:
        """Return whether the two methods below are used: with several streams, or if overridden."""
        own = overrides(cls, "before_final_norm") or overrides(cls, "after_final_norm")
        return cls.streams > 1 or own

    @staticmethod
    def before_final_norm(
        streams: Sequence[Tensor], norm: Callable[[str, Tensor], Tensor]
    ) -> Tensor:
        """Return the input of the final norm from the streams after the last layer, (T, B, C) each.

        Args:
            norm: applies one of ``final_norms``, given its name and x.
        """
        return streams[0]

    @staticmethod
    def after_final_norm(streams: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return the output of the stack from its streams and the output y of the final norm."""
        return y

    @staticmethod
    def initialize(layer: nn.Module, place: LayerPlace) -> None:
        """Initialize the weights of a layer that fairseq has built as this placement requires.

        Overriding it adds the placement's name to the values of ``--norm-init``, as its default.
        """

    @classmethod
    def refuses(cls, initialization: str) -> str:
        """Return why this placement cannot train with this ``--norm-init``; empty: it can."""
        return ""

    @classmethod
    def reason_not_foldable(cls, slot: str) -> str:
        """Return why a norm at ``slot`` cannot be folded into linear maps; empty: it can.

        The output of a norm on the input of a branch, before the last map of a branch, or after
        the stack goes into linear maps only; the input of a norm on the output of a branch comes
        from the branch's last map.
        """
        if slot == FINAL and cls.acts_at_final_norm():
            return "the placement changes its input or its output"
        if slot in (INPUT, INNER, OUTPUT, FINAL):
            return ""
        return ON_THE_STREAM if slot in (SUM, STREAM) else NOT_ONLY_INTO_MAPS


def fairseqs_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules inside ``model`` that an initialization of its maps may change.

    Those inside a norm or a placement, such as a gate, have initial weights of their own.
    """
    own = {
        inner
        for part in model.modules()
        if isinstance(part, Norm | Placement)
        for inner in part.modules()
    }
    return (module for module in model.modules() if module not in own)


def first_stream(x: Stream) -> Tensor:
    """Return the stream itself, (T, B, C), which is the first of a tuple."""
    stream: Tensor = x[0] if isinstance(x, tuple) else x
    return stream


def split_streams(x: Tensor, dim: int, streams: int) -> tuple[Tensor, ...]:
    """Split the output x of a layer, or the embeddings, into residual streams, (T, B, dim) each."""
    return x.chunk(streams, dim=-1) if x.size(-1) > dim else (x,) * streams


def overrides(cls: type[Placement], method: str) -> bool:
    """Return whether ``cls`` overrides a method of :class:`Placement`."""
    return getattr(cls, method) is not getattr(Placement, method)


PlacementClass = TypeVar("PlacementClass", bound=type[Placement])


def register_placement(
    name: str, *, equation: str, paper: str, paper_read: bool = True
) -> Callable[[PlacementClass], PlacementClass]:
    """Class decorator: make a :class:`Placement` known as ``--norm-placement name``.

    Args:
        name: the value of the flag.
        equation: one line; f is a branch without norms, x its input.
        paper: authors, year and section.
        paper_read: False if the paper itself could not be read; the placement's file says what it
            follows instead.

    Raises:
        ValueError: the name is taken or not a word, or a placement that acts at the final norm has
            none.
    """
    check_name("placement", name)

    def register(cls: PlacementClass) -> PlacementClass:
        if name in PLACEMENTS:
            raise ValueError(
                f"placement {name!r} is registered twice: {PLACEMENTS[name]} and {cls}"
            )
        if cls.acts_at_final_norm() and not cls.final_norm:
            raise ValueError(
                f"placement {name!r} has final_norm = False, but several streams, "
                "before_final_norm or after_final_norm, which need a norm after the stack; set "
                "final_norm = True"
            )
        cls.equation, cls.paper, cls.paper_read = equation, paper, paper_read
        PLACEMENTS[name] = cls
        return cls

    return register


def placement_class(name: str) -> type[Placement]:
    """Return the placement ``name``; raise ValueError listing all names if it is unknown."""
    if name not in PLACEMENTS:
        raise ValueError(f"norm_placement is {name!r}; choose from {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]
