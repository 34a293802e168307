"""Training of a norm with batch statistics as an operator of torch, for ``torch.compile``.

Such a norm counts updates, keeps windows, and moves statistics in its backward pass too. A graph
cannot hold this state of Python objects. So the graph holds one call for the forward pass of a
norm and one for its backward pass. Both run the same code as without ``torch.compile``.

    norm_plugin::train             moves the buffers that it is given, as its schema declares
    norm_plugin::train_backward    moves the norm's own buffers: a graph would save their values
                                   in the forward pass, but each backward pass must start from
                                   what the one before it has left

The first keeps autograd's graph of the norm for the second, as long as the token exists that it
returns. It does not keep the input: the compiler may reuse that memory and compute the input
again for the backward pass.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_NORMS: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def new_handle(norm: nn.Module) -> Tensor:
    """A number, (), int64, by which the operators find ``norm``.

    It is a tensor, since a number in Python would become a constant of the graph, and each norm
    that runs through the same code would need a graph of its own.
    """
    number = next(_numbers)
    _NORMS[number] = norm
    return torch.tensor(number)


class _Kept:
    """A forward pass that its backward pass will need.

    Args:
        x: its input, whose memory this keeps no hold of.
    """

    def __init__(self, x: Tensor) -> None:
        self.memory = x.untyped_storage().data_ptr()
        self.y = x.new_empty(0)
        self.inputs: list[Tensor] = []
        self.x: Tensor | None = None  # while a backward pass runs

    def pack(self, saved: Tensor) -> Any:
        """How x lies there, for what autograd saves of x; every other tensor as it is."""
        if saved.numel() == 0 or saved.untyped_storage().data_ptr() != self.memory:
            return saved
        return saved.size(), saved.stride(), saved.storage_offset()

    def unpack(self, packed: Any) -> Tensor:
        """The inverse of :meth:`pack`."""
        if isinstance(packed, Tensor):
            return packed
        assert self.x is not None
        return self.x.as_strided(*packed)


_kept: dict[int, _Kept] = {}


@contextmanager
def _autograd_on(wanted: bool) -> Iterator[None]:
    """Let autograd record, which torch keeps out of what an operator calls."""
    torch_c: Any = torch._C
    keys = (torch_c.DispatchKey.AutogradFunctionality, torch_c.DispatchKey.ADInplaceOrView)
    before = [torch_c._dispatch_tls_is_dispatch_key_excluded(key) for key in keys]
    try:
        for key in keys:
            torch_c._dispatch_tls_set_dispatch_key_excluded(key, False)
        with torch.set_grad_enabled(wanted):
            yield
    finally:
        for key, was in zip(keys, before):
            torch_c._dispatch_tls_set_dispatch_key_excluded(key, was)


@contextmanager
def _in_place_of(own: dict[str, Any], given: Sequence[Tensor]) -> Iterator[None]:
    """Let the parameters ``own`` of a norm be those that a graph has given."""
    before = {name: one for name, one in own.items() if one is not None}
    own.update(zip(before, given))
    try:
        yield
    finally:
        own.update(before)


def _copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for one, value in zip(to, values):
        if one.data_ptr() != value.data_ptr():
            one.copy_(value)


@torch.library.custom_op("norm_plugin::train", mutates_args=("buffers",))
def train(
    x: Tensor,
    padding_mask: Tensor | None,
    parameters: Sequence[Tensor],
    buffers: Sequence[Tensor],
    handle: Tensor,
    wanted: Sequence[bool],
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """y, like x, of ``Norm.forward``, and a token, (), int64, for the backward pass.

    Args:
        x, padding_mask, batch_first: see :meth:`Norm.forward`.
        parameters, buffers: of the norm, in its order.
        handle: of the norm.
        wanted: whether x and each parameter need a gradient.
    """
    norm: Any = _NORMS[int(handle)]
    own = list(norm.buffers(recurse=False))
    _copy_all(own, buffers)
    number = next(_numbers)
    token = torch.tensor(number)
    with _autograd_on(any(wanted)):
        inputs = [one.detach().requires_grad_(want) for one, want in zip((x, *parameters), wanted)]
        kept = _Kept(x)
        with (
            _in_place_of(norm._parameters, inputs[1:]),
            torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack),
        ):
            y = norm.forward(inputs[0], padding_mask, batch_first)
    if any(wanted):
        kept.y, kept.inputs = y, [one for one, want in zip(inputs, wanted) if want]
        _kept[number] = kept
        weakref.finalize(token, _kept.pop, number)
    _copy_all(buffers, own)
    return y.detach().contiguous(), token


@train.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty((), dtype=torch.int64)


@torch.library.custom_op("norm_plugin::train_backward", mutates_args=())
def train_backward(
    dy: Tensor, x: Tensor, parameters: Sequence[Tensor], token: Tensor, wanted: Sequence[bool]
) -> list[Tensor]:
    """The gradients of x and each parameter, empty where it is not wanted.

    Args:
        dy: like y.
        x, parameters, wanted: those of the forward pass.
        token: what it returned.
    """
    kept = _kept[int(token)]
    kept.x = x
    try:
        gradients = torch.autograd.grad(kept.y, kept.inputs, dy, retain_graph=True)
    finally:
        kept.x = None
    found = iter(gradients)
    return [next(found).contiguous() if want else x.new_empty(0) for want in wanted]


@train_backward.register_fake
def _(
    dy: Tensor, x: Tensor, parameters: Sequence[Tensor], token: Tensor, wanted: Sequence[bool]
) -> list[Tensor]:
    every = (x, *parameters)
    return [one.new_empty(one.shape if want else 0) for one, want in zip(every, wanted)]


class Train(torch.autograd.Function):
    """y of :func:`train`, with its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        padding_mask: Tensor | None,
        batch_first: bool,
        handle: Tensor,
        wanted: Sequence[bool],
        *state: Tensor,
    ) -> Tensor:
        """state: the parameters, one for each of ``wanted`` but the first, and the buffers."""
        parameters, buffers = list(state[: len(wanted) - 1]), list(state[len(wanted) - 1 :])
        y, token = train(x, padding_mask, parameters, buffers, handle, wanted, batch_first)
        ctx.save_for_backward(x, token, *parameters)
        ctx.wanted, ctx.buffers = wanted, len(buffers)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and the parameters."""
        x, token, *parameters = ctx.saved_tensors
        gradients = train_backward(dy, x, parameters, token, ctx.wanted)
        of_x, *of_state = [one if want else None for one, want in zip(gradients, ctx.wanted)]
        return of_x, None, None, None, None, *of_state, *(None for _ in range(ctx.buffers))


def train_in_graph(
    norm: nn.Module, handle: Tensor, x: Tensor, padding_mask: Tensor | None, batch_first: bool
) -> Tensor:
    """A training forward of ``norm`` while ``torch.compile`` traces; see :meth:`Norm.forward`.

    Raises:
        RuntimeError: the norm has modules within, whose state the operator would not be given.
    """
    if any(True for _ in norm.children()):
        raise RuntimeError(
            f"{type(norm).__name__} has modules within it; torch.compile trains a norm with batch "
            "statistics only if all parameters and buffers are its own"
        )
    parameters, buffers = list(norm.parameters(recurse=False)), list(norm.buffers(recurse=False))
    wanted = [torch.is_grad_enabled() and one.requires_grad for one in (x, *parameters)]
    y: Tensor = Train.apply(x, padding_mask, batch_first, handle, wanted, *parameters, *buffers)
    return y
