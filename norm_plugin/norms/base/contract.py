"""The contract of a norm: shapes, padding and precision, handled once for all norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

FusedForm = Callable[["Norm", Tensor, Tensor | None], Tensor | None]
"""Computes y from a norm, x (..., C) and the real positions; None if x is not supported."""


class InferenceAffine(NamedTuple):
    """The form of a norm whose statistics are constant in inference: y = gain * x + offset.

    Attributes:
        gain, offset: (C,), in float64, so that values computed from them are rounded only once.
    """

    gain: Tensor
    offset: Tensor


class CannotFold(ValueError):  # noqa: N818 -- an expected outcome, not an error
    """Raised if a norm cannot be folded into the layer after it; the message is the reason."""


class Norm(nn.Module):
    """A normalization over the last dimension (or over positions) of its input.

    A subclass implements :meth:`normalize`. :meth:`forward` handles dtypes, the layout of the
    padding mask and checks.

    Args:
        dim: size C of the last dimension.

    Attributes:
        batch_statistics: True when, in training, the output at one position depends on other
            positions. Such a norm excludes padding, and is not used in decoders by default, where
            a position would see its future.
        exact_gradient: False when the backward pass is by design not the derivative of the
            forward pass.
        bounded: False when the output of a training forward (in the warm-up, if there is one)
            grows with the input without bound.
        fused: computes the same output in fewer passes over memory; None: the norm has no such
            form. ``norm_plugin.kernels`` sets it.
        weight_offset: what is added to the parameter ``weight`` to give gamma.
        built_with: every declared option with its value, if ``build_norm`` built the norm.
        call: the number of the current call of this norm within the forward of its model, from 0;
            None if nothing counts the calls. The hook of a padding mask counts them.
    """

    batch_statistics: ClassVar[bool] = False
    exact_gradient: ClassVar[bool] = True
    bounded: ClassVar[bool] = True
    fused: FusedForm | None = None
    weight_offset: float = 0.0
    call: int | None = None
    built_with: Mapping[str, Any] = MappingProxyType({})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the arguments, with which :meth:`reset_parameters` builds the norm again."""
        norm = super().__new__(cls)
        vars(norm)["_arguments"] = args, kwargs
        return norm

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim is {dim}; a norm needs at least one channel")
        self.dim = dim

    def reset_parameters(self) -> None:
        """Give the norm's own parameters and buffers their initial values, as torch's modules do.

        They are those of a new norm with the same arguments, so a norm of your own has this method
        too. Call it after ``to_empty``, or where a checkpoint lacks the values of a norm.

        Raises:
            RuntimeError: the norm was given a parameter or buffer that a new one does not have.
        """
        args, kwargs = vars(self)["_arguments"]
        with torch.device("cpu"):  # a default device may have no values
            new = type(self)(*args, **kwargs)
        initial = dict(_own_tensors(new))
        for name, tensor in _own_tensors(self):
            if name not in initial:
                raise RuntimeError(
                    f"{name} was added to a {type(self).__name__} after it was built, so its "
                    "initial value is not known; initialize the norm before you add it"
                )
            _set_values(tensor, initial[name])

    if TYPE_CHECKING:  # a call of torch's modules has the type Any

        def __call__(
            self, x: Tensor, padding_mask: Tensor | None = None, batch_first: bool = False
        ) -> Tensor: ...
    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
            """Call the norm as any module; x may be named, also ``input`` as for torch's LayerNorm.

            Hooks get it by position.
            """
            for name in ("x", "input") if kwargs else ():
                if name in kwargs:
                    args = kwargs.pop(name), *args
            return super().__call__(*args, **kwargs)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, batch_first: bool = False
    ) -> Tensor:
        """Normalize ``x``.

        Half precision is converted to float32 first, in which everything is computed; the result
        is cast back once, after gain and offset.

        Args:
            x: (T, B, C), or (B, T, C) with ``batch_first``; without a mask any (..., C).
            padding_mask: bool, True at padding: always (B, T) for a three-dimensional ``x``,
                else the shape of ``x`` without its last dimension. None: no padding. A mask that is
                changed in place has to be changed by operations of torch: through numpy or
                ``.data`` it would stay unnoticed, as in autograd.
            batch_first: a three-dimensional ``x`` is (B, T, C). This cannot be inferred: with T = B
                the mask fits both layouts.

        Returns:
            (..., C), in the shape and dtype of ``x``.

        Raises:
            ValueError: the last dimension of ``x`` is not C, or the mask does not fit ``x``.
        """
        if x.size(-1) != self.dim:
            raise ValueError(
                f"{type(self).__name__} was built for {self.dim} channels, "
                f"but its input has shape {tuple(x.shape)}"
            )
        valid = None if padding_mask is None else valid_positions(x, padding_mask, batch_first)
        fused = None if self.fused is None else self.fused(self, x, valid)
        if fused is not None:
            return fused
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return self.normalize(wide, valid).to(x.dtype)

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Normalize ``x``, whose dtype is float32 or float64.

        Args:
            x: (..., C).
            valid: bool (...), True at real positions; None: every position is real.

        Returns:
            (..., C), in the dtype of ``x``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define normalize()")

    def inference_map(self) -> InferenceAffine:
        """Return the gain and the offset per channel that this norm amounts to in inference.

        Raises:
            CannotFold: the norm uses statistics of its input in inference too, as most do.
        """
        raise CannotFold(
            "it is computed from each input, in inference too; a norm of your own that "
            "is not needs an inference_map()"
        )

    @classmethod
    def transformer_options(
        cls, options: dict[str, Any], heads: int, after_encoder: bool
    ) -> dict[str, Any]:
        """Return the options for one site of a Transformer; a norm may override ``options``.

        Args:
            options: the options given by the user.
            heads: number of attention heads of the stack.
            after_encoder: whether the site is the final norm of the encoder.
        """
        return options

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in the parentheses: the width and the options."""
        return ", ".join([str(self.dim), *(f"{k}={v}" for k, v in self.built_with.items())])


class AffineNorm(Norm):
    """A norm with a learned gain and offset per channel: ``weight`` (gamma), ``bias`` (beta)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def affine(self, x_hat: Tensor) -> Tensor:
        """Return gamma * x_hat + beta, (..., C), in the dtype of ``x_hat``, (..., C)."""
        return x_hat * self.weight.to(x_hat.dtype) + self.bias.to(x_hat.dtype)


def _own_tensors(norm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of the parameters and buffers that are not those of submodules."""
    yield from norm.named_parameters(recurse=False)
    yield from norm.named_buffers(recurse=False)


def _set_values(tensor: Tensor, values: Tensor) -> None:
    """Set ``tensor`` to ``values`` of the same shape, in place."""
    if values.numel() and (values == (first := values.flatten()[0])).all():
        # By torch.nn.init, as DTensors allow, and which transformers keeps from what it has loaded
        nn.init.constant_(tensor, first.item())
    else:
        with torch.no_grad():
            tensor.copy_(values)


def valid_positions(x: Tensor, padding_mask: Tensor, batch_first: bool = False) -> Tensor:
    """Return a bool mask of the real positions of ``x``, contiguous, without its last dimension.

    It is computed once for all norms that get the same mask, and kept on that tensor.

    Args:
        x: (T, B, C), or (B, T, C) with ``batch_first``, or any (..., C).
        padding_mask: True at padding; (B, T) for a three-dimensional ``x``.

    Raises:
        ValueError: the mask does not fit ``x``.
    """
    time_first = x.dim() == 3 and not batch_first
    transposed = time_first and padding_mask.dim() == 2
    if _must_be_recorded(padding_mask):
        valid = _not_padding(padding_mask, transposed)
    else:
        stream = torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else 0
        # With the identity: a copy of the mask has what is kept on it, and versions of its own
        key = (id(padding_mask), padding_mask._version, transposed, stream)
        known = vars(padding_mask).get(_VALID)
        if known is None or known[0] != key:
            known = key, _not_padding(padding_mask, transposed)
            vars(padding_mask)[_VALID] = known
        valid = known[1]
    if valid.shape != x.shape[:-1]:
        wanted = (x.size(1), x.size(0)) if time_first else tuple(x.shape[:-1])
        order = ""
        if x.dim() == 3:
            order = ", (B, T) of (B, T, C)" if batch_first else ", (B, T) of (T, B, C)"
        raise ValueError(
            f"padding_mask has shape {tuple(padding_mask.shape)}; an input of shape "
            f"{tuple(x.shape)} with batch_first={batch_first} needs {wanted}{order}"
        )
    return valid


_VALID = "_valid_positions"


def _must_be_recorded(mask: Tensor) -> bool:
    """Return whether a graph or a trace of this forward would keep a stored result as a constant.

    A tensor of inference mode does not say when it changes, and a result of inference mode cannot
    be saved by the graph of a later forward.
    """
    return (
        torch.compiler.is_compiling()
        or mask.is_inference()
        or torch.is_inference_mode_enabled()
        or torch.jit.is_tracing()
        or (mask.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _not_padding(mask: Tensor, transposed: bool) -> Tensor:
    return (~(mask.t() if transposed else mask).to(torch.bool)).contiguous()
