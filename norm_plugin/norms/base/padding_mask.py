"""Pass the padding mask of a model's forward to the norms inside it.

A model calls its norms with x alone. A :class:`PaddingMask` holds the mask of the current forward,
and a hook on each norm adds it to the arguments: ``norm(x)`` becomes ``norm(x, mask,
batch_first)``, so that the model's code does not change. Only norms with batch statistics need the
mask, and only in training: no other output depends on other positions.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.recomputation import Forwards, is_recomputing

TRUE_AT_PADDING = "padding_mask"
"""An argument whose name ends like this is True (or -inf) at padding, as in torch and fairseq; any
other is 0 at padding, as ``attention_mask`` is in transformers."""
OF_A_DECODER = ("decoder_attention_mask", "tgt_key_padding_mask")
"""Argument names of the second stack's mask, in encoder-decoders of transformers and torch."""
INPUTS = ("input_ids", "inputs_embeds")
"""Arguments of transformers with the tokens of this forward. The mask is longer where earlier ones,
as those of a prefix, are in a cache."""


class PaddingMask:
    """Holds the padding mask of the current forward, and passes it to norms.

    Args:
        model: the model whose forward knows the mask; it sets the mask by :meth:`holding`, or
            through the hooks of :meth:`hold_argument`.

    Attributes:
        mask: (B, T), True at padding; None: no position is padding, or no forward is running.
        held: whether a forward is running.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model_class = type(model).__name__
        self.mask: Tensor | None = None
        self.held = False
        self._calls: dict[int, int] = {}

    def __deepcopy__(self, memo: dict[Any, Any]) -> PaddingMask:
        """Copy it with its model, whose norms may be copied before or after it."""
        copied = copy.copy(self)
        copied._release()
        copied._calls = {}
        memo[id(self)] = copied
        for hook in memo.pop((PaddingMask, id(self)), []):
            hook.source = copied
        return copied

    def link_copy(self, hook: MaskedNorm, memo: dict[Any, Any]) -> None:
        """Give ``hook``, copied by the ``copy.deepcopy`` of ``memo``, the copy of this if any."""
        if id(self) in memo:
            hook.source = memo[id(self)]
        else:  # this may be copied later
            memo.setdefault((PaddingMask, id(self)), []).append(hook)

    @contextmanager
    def holding(self, mask: Tensor | None) -> Iterator[None]:
        """Return a context in which the norms get ``mask``: (B, T), True at padding, or None."""
        self._hold(mask)
        try:
            yield
        finally:
            self._release()

    def _hold(self, mask: Tensor | None) -> None:
        self.mask, self.held, self._calls = mask, True, {}

    def _release(self) -> None:
        self.mask, self.held = None, False

    def attach(self, norm: Norm, batch_first: bool = False, path: str = "") -> None:
        """Pass the mask to ``norm`` in each training forward from now on.

        Args:
            batch_first: whether its input is (B, T, C), not (T, B, C); or that, flattened to
                (B T, C) or (T B, C).
            path: where the norm is in its model, for messages.
        """
        norm.register_forward_pre_hook(MaskedNorm(self, batch_first, path))

    def count_call(self, norm: Norm) -> int | None:
        """Return the number of this call of ``norm`` in the running forward, from 0, or None."""
        if not self.held:
            return None
        call = self._calls.get(id(norm), 0)
        self._calls[id(norm)] = call + 1
        return call

    def hold_argument(self, model: nn.Module, argument: str) -> None:
        """Take the mask from the arguments of each forward of ``model``.

        Args:
            argument: name of the argument; its value is (B, T) or None. Of a longer one, the end is
                taken, where the tokens of the forward have a name of transformers.

        Raises:
            ValueError: the forward has no such argument, or one mask for each of two stacks.
        """
        names = list(inspect.signature(model.forward).parameters)
        if argument not in names:
            raise ValueError(
                f"the forward of {self.model_class} has no argument {argument!r}, but "
                f"{', '.join(names)}; name the one with the padding mask, as in "
                "mask='src_key_padding_mask', or give mask=None if no input has padding"
            )
        second = [name for name in OF_A_DECODER if name in names and name != argument]
        if second:
            raise ValueError(
                f"{self.model_class} has two stacks with a mask each, {argument!r} and "
                f"{second[0]!r}; replace the norms of its encoder and of its decoder by a call "
                "for each"
            )
        self.argument = argument
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.register_forward_hook(self._end, always_call=True)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hold the mask that a forward of the model is given, until it ends: a hook before it."""
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        mask = padding_of(given.get(self.argument), self.argument)
        tokens = next((given[name] for name in INPUTS if given.get(name) is not None), None)
        self._hold(mask if mask is None or tokens is None else mask[:, -tokens.size(1) :])

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._release()


class MaskedNorm:
    """The hook of one norm: adds the mask and the layout of x to its arguments.

    Activation checkpointing may recompute a norm after the forward that held the mask has ended.
    Then the mask is that of the forward with the same input.
    """

    def __init__(self, source: PaddingMask, batch_first: bool, path: str = "") -> None:
        self.source, self.batch_first, self.path = source, batch_first, path
        self._forwards = Forwards()

    def __deepcopy__(self, memo: dict[Any, Any]) -> MaskedNorm:
        """Copy the hook with its norm.

        In a copy of the model, the hook gets the mask of the copy. A copy of a part, as peft makes
        of a norm, is put into the same model, whose mask it gets.
        """
        copied = MaskedNorm(self.source, self.batch_first, self.path)
        self.source.link_copy(copied, memo)
        return copied

    def __call__(self, norm: Norm, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """Return the arguments of the norm; inputs: x, (B, T, C) or (T, B, C), or flattened."""
        if not norm.training:
            return inputs
        x = inputs[0]
        mask = self.source.mask
        if norm.batch_statistics:
            norm.call = self.source.count_call(norm)
            if not (self.source.held and is_recomputing()):
                self._forwards.begin(x, norm.call)
                if not is_recomputing():
                    self._check_held(norm)
                    self._forwards.current.value = mask
                mask = self._forwards.current.value
        if mask is not None:
            mask = self._mask_of(x, mask, self.path or type(norm).__name__)
        return (*inputs, mask, self.batch_first)

    def _mask_of(self, x: Tensor, mask: Tensor, path: str) -> Tensor:
        """Return the mask as the norm at ``path`` takes it with x, flattened as x is.

        Raises:
            ValueError: not each position of x is one of the mask.
        """
        batch, time = mask.shape
        expected = (batch, time) if self.batch_first else (time, batch)
        if x.shape[:-1] not in (expected, (batch * time,)):
            raise ValueError(
                f"{path} gets an input of shape {tuple(x.shape)} for tokens of shape "
                f"{tuple(mask.shape)}, so it is not known which of its positions are padding. "
                "Leave this norm out, by keep= of replace_norms, or choose a norm over channels, "
                "such as 'layernorm' or 'rmsnorm'"
            )
        if x.dim() > 2:
            return mask
        return (mask if self.batch_first else mask.t()).flatten()

    def _check_held(self, norm: Norm) -> None:
        if not self.source.held:
            raise RuntimeError(
                f"a {type(norm).__name__} is called in training outside of the forward of the "
                f"{self.source.model_class} that knows its padding; call that model, or replace "
                "the norms of the part that you call. If the norm was moved here from another "
                "model, replace the norms here instead, then load its values by load_state_dict"
            )


def padding_of(value: Any, argument: str) -> Tensor | None:
    """Return the padding, (B, T), True at padding, from a mask argument; None stays None.

    Raises:
        ValueError: the value is not of shape (B, T), or is one to be added to scores, in which 0 is
            no padding, under the name of one that is 0 at padding.
    """
    if value is None:
        return None
    if not (isinstance(value, Tensor) and value.dim() == 2):
        is_tensor = isinstance(value, Tensor)
        what = f"has shape {tuple(value.shape)}" if is_tensor else f"is a {type(value).__name__}"
        raise ValueError(
            f"{argument} {what}; a norm with batch statistics needs the padding of each position, "
            "a tensor (batch, time). If an outer model makes this mask from one, give that model "
            "to replace_norms, with only= for this part"
        )
    if argument.endswith(TRUE_AT_PADDING):
        return value.bool()  # -inf is True, and 0.0 False
    if value.is_floating_point() and bool((value < 0).any()):
        raise ValueError(
            f"{argument} has negative values, as a mask that is added to scores; a norm with batch "
            "statistics needs one that is 0 at padding, and 1 elsewhere"
        )
    return value == 0
