"""The padding mask of a model's forward, handed to the norms inside it.

A model calls its norms with x alone. Here, a hook of the model reads the padding mask among the
arguments of its forward, and a hook of each norm adds the mask to x. Norms need it in training
only, and only those with batch statistics: no other output depends on other positions.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.recomputation import Forwards, in_backward

TRUE_AT_PADDING = "padding_mask"
"""An argument whose name ends so is True (or -inf) at padding, as in torch and fairseq. Any other
is 0 at padding, as ``attention_mask`` is in transformers."""
OF_A_DECODER = ("decoder_attention_mask", "tgt_key_padding_mask")
"""Masks of the second stack of a model with two, in transformers and in torch."""


class ForwardMask:
    """Reads the padding mask from the arguments of a model's forward, and hands it to norms.

    Args:
        model: the model; its forward takes the mask.
        argument: name of that argument, whose value is (B, T) or None.
        batch_first: inside the model, x is (B, T, C) and not (T, B, C).

    Raises:
        ValueError: the forward has no such argument, or it has a mask for each of two stacks.
    """

    def __init__(self, model: nn.Module, argument: str, batch_first: bool) -> None:
        self.argument, self.batch_first = argument, batch_first
        self.mask: Tensor | None = None
        self.running = False
        self.kind = kind = type(model).__name__
        names = list(inspect.signature(model.forward).parameters)
        if argument not in names:
            raise ValueError(
                f"the forward of {kind} has no argument {argument!r}, but {', '.join(names)}; "
                "name the one with the padding mask, as in mask='src_key_padding_mask', or give "
                "mask=None if no input has padding"
            )
        second = [name for name in OF_A_DECODER if name in names and name != argument]
        if second:
            raise ValueError(
                f"{kind} has two stacks with a mask each, {argument!r} and {second[0]!r}; replace "
                "the norms of its encoder and of its decoder by a call for each"
            )
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.register_forward_hook(self._end, always_call=True)

    def serve(self, norm: Norm) -> None:
        """Give ``norm`` the mask of each training forward from now on."""
        norm.register_forward_pre_hook(MaskedNorm(self))

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        self.mask = self._padding(given.get(self.argument))
        self.running = True

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.mask, self.running = None, False

    def _padding(self, given: Tensor | None) -> Tensor | None:
        """(B, T), True at padding, whatever the convention of ``given``."""
        if given is None:
            return None
        if given.dim() != 2:
            raise ValueError(
                f"{self.argument} has shape {tuple(given.shape)}; a norm with batch statistics "
                "needs the padding of each position: (batch, time)"
            )
        if self.argument.endswith(TRUE_AT_PADDING):
            return given.bool()  # -inf is True, and 0.0 False
        return given == 0


class MaskedNorm:
    """The hook of one norm: adds the mask, and how x lies, to its input.

    Activation checkpointing computes a norm again after the model's forward has ended. The mask is
    then that of the forward with the same input.
    """

    def __init__(self, source: ForwardMask) -> None:
        self.source = source
        self._forwards = Forwards()

    def __call__(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """The hook; inputs: x, (B, T, C) or (T, B, C)."""
        if not norm.training:
            return inputs
        self._forwards.open(inputs[0])
        if not in_backward():
            if not self.source.running:
                raise RuntimeError(
                    f"a {type(norm).__name__} is called in training outside of the forward of the "
                    f"{self.source.kind} that replace_norms was given, so its padding is unknown; "
                    "call that model, or replace the norms of the part that you call"
                )
            self._forwards.current[0] = self.source.mask
        return (*inputs, self._forwards.current[0], self.source.batch_first)
