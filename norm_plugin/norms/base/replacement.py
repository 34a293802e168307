"""Replace the LayerNorms and RMSNorms of any torch model by a norm of the registry, in one call.

>>> from norm_plugin.norms import replace_norms
>>> for replaced in replace_norms(model, "powernorm", warmup_updates=4000):
...     print(replaced)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.padding_mask import PaddingMask
from norm_plugin.norms.base.registry import norm_spec
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

PARAMETERS = ("weight", "bias")
"""The gain and the offset of each channel, in torch and here."""
NAMES = ("LayerNorm", "RMSNorm")
"""Class names (or their endings) that are replaced: nn.LayerNorm, LlamaRMSNorm, T5LayerNorm."""
EPS = ("eps", "variance_epsilon")
"""The attributes in which such classes store eps."""


class Replaced(NamedTuple):
    """A norm that was replaced.

    Attributes:
        path: the module's path, as in ``model.named_modules()``.
        was: the name of its former class.
        norm: the new norm.
        carried: which of weight, bias and eps it keeps from the old norm.
    """

    path: str
    was: str
    norm: Norm
    carried: tuple[str, ...]

    def __str__(self) -> str:
        carried = f", which keeps {', '.join(self.carried)}" if self.carried else ""
        return f"{self.path}: {self.was} -> {type(self.norm).__name__}{carried}"


def replace_norms(
    model: nn.Module,
    name: str,
    *,
    mask: str | None = "attention_mask",
    batch_first: bool = True,
    **options: Any,
) -> list[Replaced]:
    """Replace every LayerNorm and RMSNorm inside ``model`` by norm ``name``, in place.

    The new norm takes over the parameters ``weight`` and ``bias`` themselves if it has them in the
    same shape, so that an optimizer keeps them. It takes over eps if it has that option and
    ``options`` do not set it. A module that is used in several places stays one module.

    A norm with batch statistics excludes padding in training. It gets the padding from the argument
    ``mask`` of the forward of ``model``, so in training call ``model`` itself, not a part of it. If
    the argument is None, no position is padding. In a causal model, such a norm lets each position
    see its future in training: a warning is given if the model is recognized as causal.

    Args:
        name: one of ``NORM_TYPES``.
        mask: the argument of ``model.forward`` with the mask, (B, T). If its name ends in
            ``padding_mask``, it is True at padding; else 0 at padding. None: no input has padding.
        batch_first: inside the model x is (B, T, C), as in transformers; False: (T, B, C).
        options: the options of the norm.

    Returns:
        The replaced norms, in the order of ``model.named_modules()``.

    Raises:
        ValueError: the norm or an option is unknown; the model has no norm to replace; a norm to be
            replaced does not compute what its name says; or the padding would be unknown to a norm
            with batch statistics.
    """
    spec = norm_spec(name)
    places = list(_replaceable(model))
    if not places:
        raise ValueError(
            f"{type(model).__name__} contains no LayerNorm and no RMSNorm; nothing was replaced"
        )
    _check_layout(model, batch_first)
    # Build all norms before the first is installed: after an error the model is unchanged
    by_id = {id(old): old for _, _, _, old in places}
    eps = spec.has_option("eps") and "eps" not in options
    built = {
        key: spec.build(_shape(old)[0], **({**options, "eps": _eps(old)} if eps else options))
        for key, old in by_id.items()
    }
    _warn_of_leaks(model, name, next(iter(built.values())))
    padding = PaddingMask(model)
    masked = spec.batch_statistics and mask
    if masked:
        padding.hold_argument(model, masked)
    carried = {key: _carry_over(by_id[key], norm, model) for key, norm in built.items()}
    if masked:
        for norm in built.values():
            padding.serve(norm, batch_first)
    for parent, attribute, _, old in places:
        setattr(parent, attribute, built[id(old)])
    _leave_fast_paths(model)
    kept_eps = ("eps",) if eps else ()
    return [
        Replaced(path, type(old).__name__, built[id(old)], (*carried[id(old)], *kept_eps))
        for _, _, path, old in places
    ]


def _replaceable(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, Any]]:
    """Yield parent, attribute, path and module of each norm; a shared norm once per place."""
    for prefix, parent in model.named_modules():
        for attribute, child in parent._modules.items():  # not named_modules(): it skips repeats
            if _is_norm(child):
                path = f"{prefix}.{attribute}".lstrip(".")
                _check_formula(child, path)
                yield parent, attribute, path, child


def _is_norm(module: nn.Module | None) -> bool:
    """Return whether a module is to be replaced; modules with children (AdaLayerNorm) are not."""
    if module is None or isinstance(module, Norm) or any(True for _ in module.children()):
        return False
    return type(module).__name__.endswith(NAMES)


def _check_formula(old: Any, path: str) -> None:
    """Raise ValueError unless ``old`` computes what its name says, on one example.

    Classes of the same name differ: Gemma's RMSNorm multiplies by 1 + weight, so its weight would
    mean something else in another norm.
    """
    what = f"{path} is a {type(old).__name__}"
    shape = _shape(old)
    if len(shape) != 1:
        raise ValueError(f"{what} over the shape {shape}; only the last dimension can be replaced")
    weight, bias = (getattr(old, name, None) for name in PARAMETERS)
    like = torch.empty(0) if weight is None else weight
    if like.is_meta:
        return  # meta tensors have no values to compare
    x = torch.linspace(-1, 2, shape[0], device=like.device, dtype=like.dtype)
    with torch.no_grad():
        y = old(x)
        forms = [F.layer_norm(x, shape, weight, bias, _eps(old))]
        forms += [F.rms_norm(x, shape, weight, _eps(old))] if bias is None else []
    # Two implementations of one formula differ by rounding, two formulas by much more
    close = torch.finfo(y.dtype).eps ** 0.5
    if not any(torch.allclose(y, form, rtol=close, atol=close) for form in forms):
        raise ValueError(
            f"{what} whose output is neither that of LayerNorm nor that of RMSNorm with its weight "
            "and its eps, so its parameters cannot be carried over; replace it by hand"
        )


def _shape(old: Any) -> tuple[int, ...]:
    """Return the shape over which a norm normalizes; () if it cannot be determined."""
    weight = getattr(old, "weight", None)
    given = getattr(old, "normalized_shape", () if weight is None else weight.shape)
    return tuple(given)


def _eps(old: Any) -> float:
    given = next((getattr(old, name) for name in EPS if hasattr(old, name)), None)
    if given is not None:
        return float(given)
    # torch.nn.RMSNorm without eps uses that of the precision in which it computes: float32 for
    # half precision
    weight = getattr(old, "weight", None)
    dtype = torch.get_default_dtype() if weight is None else weight.dtype
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps


def _carry_over(old: Any, norm: Norm, model: nn.Module) -> tuple[str, ...]:
    """Give ``norm`` the parameters, device, dtype and mode of ``old``.

    If ``old`` has no parameters, device and dtype are those of the first parameter of ``model``.

    Returns:
        The names of the parameters that it keeps.
    """
    candidates = (parameter for part in (old, model) for parameter in part.parameters())
    like = next((parameter for parameter in candidates if parameter.is_floating_point()), None)
    if like is not None:
        norm.to(device=like.device, dtype=like.dtype)
    norm.train(old.training)
    theirs = dict(old.named_parameters(recurse=False))
    ours: dict[str, Tensor] = dict(norm.named_parameters(recurse=False))
    carried = [
        name
        for name in PARAMETERS
        if name in theirs and name in ours and theirs[name].shape == ours[name].shape
    ]
    for name in carried:
        setattr(norm, name, theirs[name])
    if "weight" in carried:
        theirs["weight"].data.sub_(norm.weight_offset)
    return tuple(carried)


def _check_layout(model: nn.Module, batch_first: bool) -> None:
    """Raise ValueError if torch's attention in ``model`` expects the other layout of x."""
    for attention in model.modules():
        if isinstance(attention, nn.MultiheadAttention) and attention.batch_first != batch_first:
            raise ValueError(
                f"the attention of {type(model).__name__} has batch_first={attention.batch_first}, "
                f"but replace_norms was given batch_first={batch_first}; give the same"
            )


def _warn_of_leaks(model: nn.Module, name: str, norm: Norm) -> None:
    """Warn if ``norm`` would let the positions of a causal model see their future."""
    mixes, when = norm.batch_statistics, ""
    if isinstance(norm, BatchStatisticsNorm) and not norm.mixes_after_warmup:
        mixes, when = norm.warmup_updates > 0, " until its warm-up ends"
    causal = _causal_part(model) if mixes else None
    if causal is not None:
        warnings.warn(
            f"{causal} is causal: in training{when}, {name!r} takes statistics over the positions "
            "of a batch, so each position sees its future, and the training loss is lower than the "
            "model's. Choose a norm over channels, such as 'layernorm' or 'rmsnorm'",
            stacklevel=3,
        )


def _causal_part(model: nn.Module) -> str | None:
    """Return a description of a causal module inside ``model``, or None.

    torch has classes for decoders. In transformers, ``is_causal`` or ``is_decoder`` is an attribute
    of the attention, and ``is_decoder`` one of the configuration.
    """
    for path, module in model.named_modules():
        decoder = isinstance(module, (nn.TransformerDecoder, nn.TransformerDecoderLayer))
        config = getattr(module, "config", None)
        flags = [getattr(module, "is_causal", None), getattr(module, "is_decoder", None)]
        if decoder or True in (*flags, getattr(config, "is_decoder", None)):
            return f"{path or 'the model'} ({type(module).__name__})"
    return None


def _leave_fast_paths(model: nn.Module) -> None:
    """Disable torch's fused inference, which reads the weights of its norms as LayerNorm's."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # "an activation that the fused kernel lacks"
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
