"""Whether a model is causal, so that statistics over positions would show each its future."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

TOKENS = (5, 6, 7, 5, 6, 7)
"""The input of a trial: few, small, and none of the usual numbers of special tokens."""


def warn_of_leaks(model: nn.Module, name: str, norm: Norm, causal: bool | None) -> None:
    """Warn if ``norm`` would let the positions of a causal model see their future.

    Raises:
        ValueError: it would in a causal model, and nothing shows whether this one is.
    """
    mixes, when = norm.batch_statistics, ""
    if isinstance(norm, BatchStatisticsNorm) and not norm.mixes_after_warmup:
        mixes, when = norm.warmup_updates > 0, " until its warm-up ends"
    if not mixes or causal is False:
        return
    part = "the model" if causal else _causal_part(model)
    if part is None and any(isinstance(module, nn.Embedding) for module in model.modules()):
        found = is_causal(model)
        if found or (found is None and _has_only_a_causal_mask(model)):
            part = f"the model ({type(model).__name__})"
        elif found is None and not _is_of_transformers(model):
            raise ValueError(
                f"{name!r} takes statistics over the positions of a batch, which in a causal model "
                f"lets each position see its future in training, and {type(model).__name__} hides "
                "whether it is causal: give causal=False if it is not; if it is, choose a norm "
                "over channels, such as 'rmsnorm', or give causal=True"
            )
    if part is not None:
        warnings.warn(
            f"{part} is causal: in training{when}, {name!r} takes statistics over the positions "
            "of a batch, so each position sees its future, and the training loss is lower than the "
            "model's. Choose a norm over channels, such as 'layernorm' or 'rmsnorm'",
            stacklevel=4,
        )


def _causal_part(model: nn.Module) -> str | None:
    """Return a description of a module inside ``model`` that says it is causal, or None.

    torch has classes for decoders. In transformers, ``is_causal`` or ``is_decoder`` is an attribute
    of some attentions, and ``is_decoder`` one of the configuration.
    """
    for path, module in model.named_modules():
        decoder = isinstance(module, (nn.TransformerDecoder, nn.TransformerDecoderLayer))
        config = getattr(module, "config", None)
        flags = [getattr(module, "is_causal", None), getattr(module, "is_decoder", None)]
        if decoder or True in (*flags, getattr(config, "is_decoder", None)):
            return f"{path or 'the model'} ({type(module).__name__})"
    return None


def _is_of_transformers(model: nn.Module) -> bool:
    return any(hasattr(getattr(module, "config", None), "model_type") for module in model.modules())


def _has_only_a_causal_mask(model: nn.Module) -> bool:
    """Return whether the code of a model of transformers has a mask of the future, and no other.

    This shows it where there are no values to call the model with, as inside ``from_pretrained``.
    """
    if getattr(model, "main_input_name", None) != "input_ids":
        return False
    classes = [each for each in type(model).__mro__ if issubclass(each, nn.Module)]
    code = [sys.modules.get(each.__module__) for each in classes]
    return any(
        hasattr(each, "create_causal_mask") and not hasattr(each, "create_bidirectional_mask")
        for each in code
    )


def is_causal(model: nn.Module) -> bool | None:
    """Return whether, in inference, later tokens depend on earlier ones and not the reverse.

    None: that cannot be seen, as the model takes more than tokens, has no values yet, gives other
    values when it is called again, does not return a value per token, or may be given a mask of the
    positions that each one sees.
    """
    parameter = next(model.parameters())
    names = inspect.signature(model.forward).parameters
    if parameter.is_meta:
        return None
    tokens = torch.tensor([TOKENS], device=parameter.device)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            y, again = (_value_per_token(model, tokens) for _ in range(2))
            first, last = (
                _value_per_token(model, tokens.index_fill(1, place, TOKENS[1]))
                for place in (tokens.new_tensor([0]), tokens.new_tensor([len(TOKENS) - 1]))
            )
    except Exception:  # noqa: BLE001 -- a forward that needs more than tokens raises what it likes
        return None
    finally:
        for module, mode in modes:
            module.training = mode
    if y is None or again is None or first is None or last is None:
        return None
    if not torch.allclose(y, again) or torch.allclose(y[:, 1:], first[:, 1:]):
        return None
    if torch.allclose(y[:, :-1], last[:, :-1]):
        return True
    masks = [name for name in names if "mask" in name]
    seen = all(name.endswith(("padding_mask", "attention_mask")) for name in masks)
    return False if seen else None


def _value_per_token(model: nn.Module, tokens: Tensor) -> Tensor | None:
    """Return the first output of shape (1, T, ...), in floating point, for ``tokens``, (1, T)."""
    by_name = "input_ids" in inspect.signature(model.forward).parameters
    output = model(input_ids=tokens) if by_name else model(tokens)
    return next((y for y in _tensors(output) if y.dim() > 2 and y.shape[:2] == tokens.shape), None)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield from (output,) if output.is_floating_point() else ()
    elif isinstance(output, (dict, list, tuple)):
        for value in output.values() if isinstance(output, dict) else output:
            yield from _tensors(value)
