"""What a LayerNorm or RMSNorm of any package computes, found by calling it.

    y = gamma * c / sqrt(v + eps) + beta,    v = mean_c c^2
    c = x - mean_c x in LayerNorm, c = x in RMSNorm

Classes with one name differ: in eps, which some fix in their code, in the names of their
parameters, and in what these are (Gemma has gamma = 1 + weight). So a norm is called with chosen
parameters on chosen inputs. With gamma = 1 and beta = 0,

    eps = v / mean_c y^2 - v

which is accurate where v is much smaller than eps. The output is compared with the formula there
where v is eps, since a larger v hides it, and where v is about 1.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

GAINS = ("weight", "gamma", "scale", "g")
OFFSETS = ("bias", "beta", "b")
"""The names of the parameters gamma and beta in public classes."""
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""The attributes in which torch keeps the hooks of a module."""
TINY = 1e-10
"""The size of an input whose v, 1e-20, is smaller than any eps in use."""
LEAST_EPS = 1e-17
"""An eps below this is taken for 0: with an input of size TINY it is not accurate in float32."""
CLOSE = 1e-4
"""The rounding of float32 is less, also where v is eps; other formulas differ by more."""
BY_HAND = "Leave it out by keep=, or replace it by hand"


class Formula(NamedTuple):
    """What a norm computes.

    Attributes:
        width: the number of channels.
        gain, offset: names of the parameters of gamma and beta; None: there is no such parameter.
        unit: gamma is the parameter plus this: 1 in Gemma, else 0.
        eps: None: it is not needed, or it is unknown.
    """

    width: int
    gain: str | None
    offset: str | None
    unit: float
    eps: float | None


def formula_of(old: nn.Module, path: str, eps_needed: bool = True) -> Formula:
    """Return what ``old`` computes. On the meta device it is called with parameters on the CPU.

    Args:
        path: the path of ``old`` in its model, for messages.
        eps_needed: whether its eps must be known.

    Raises:
        ValueError: it has hooks, or it is neither LayerNorm nor RMSNorm over the last dimension of
            its only argument, with parameters of known names, or its eps is needed and cannot be
            measured.
    """
    what = f"{path} ({type(old).__name__})"
    offloaded = hasattr(old, "_hf_hook") and any(each.is_meta for each in old.parameters())
    if offloaded or any(type(each).__name__ == "DTensor" for each in old.parameters()):
        raise ValueError(f"{what} is offloaded or sharded: replace the norms before that")
    if any(getattr(old, hooks) for hooks in HOOKS):
        raise ValueError(
            f"{what} has hooks, which the new norm would not have: remove them, and register them "
            "on the new norm"
        )
    gain, offset = _parameter_names(old, what)
    width = _width(old, gain, what)
    _check_arguments(old, what)
    with torch.device("cpu"):  # the default device may be meta, on which nothing is computed
        unit, eps = _measure(old, Formula(width, gain, offset, 0.0, None), what, eps_needed)
    if eps_needed and eps is None:
        raise ValueError(f"the eps of {what} cannot be measured; give eps=")
    return Formula(width, gain, offset, unit, eps)


def _parameter_names(old: nn.Module, what: str) -> tuple[str | None, str | None]:
    """Return the names of the gain and of the offset."""
    names = [name for name, _ in old.named_parameters(recurse=False)]
    gain, offset = (
        next((name for name in known if name in names), None) for known in (GAINS, OFFSETS)
    )
    others = ", ".join(name for name in names if name not in (gain, offset))
    if others:
        raise ValueError(
            f"{what} has the parameters {others}. A gain can be named {', '.join(GAINS)}, and an "
            f"offset {', '.join(OFFSETS)}. {BY_HAND}"
        )
    return gain, offset


def _width(old: Any, gain: str | None, what: str) -> int:
    shape = getattr(old, "normalized_shape", () if gain is None else getattr(old, gain).shape)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(shape) == 1:
        return int(shape[0])
    if not shape:
        raise ValueError(
            f"{what} has neither a gain of each channel nor a normalized_shape, so its width is "
            f"not known. {BY_HAND}"
        )
    raise ValueError(
        f"{what} is over the shape {shape}; only a norm over the last dimension can be replaced. "
        f"{BY_HAND}"
    )


def _check_arguments(old: nn.Module, what: str) -> None:
    _, *more = inspect.signature(old.forward).parameters.values()
    names = ", ".join(each.name for each in more if each.kind is each.POSITIONAL_OR_KEYWORD)
    if names:
        raise ValueError(
            f"{what} takes {names} besides its input, so it may be more than a norm. {BY_HAND}"
        )


def _measure(
    old: nn.Module, names: Formula, what: str, eps_needed: bool
) -> tuple[float, float | None]:
    """Return the attributes ``unit`` and ``eps`` of the formula of ``old``."""
    call = partial(_call, old, names, what)
    draw = torch.Generator("cpu").manual_seed(0)
    x = 0.5 + torch.randn(2, 3, names.width, generator=draw, dtype=torch.float64, device="cpu")
    line = torch.linspace(-1, 1, names.width, dtype=x.dtype, device="cpu")
    gamma = 1 + line / 2 if names.gain else torch.ones_like(line)
    beta = line if names.offset else torch.zeros_like(line)
    units = (0.0, 1.0) if names.gain else (0.0,)
    for center, unit in itertools.product((_centered, _as_it_is), units):
        v = center(TINY * x).square().mean(dim=-1)
        y = call(TINY * x, torch.ones_like(line) - unit, torch.zeros_like(line))
        eps = float((v / y.square().mean(dim=-1) - v).mean())
        if _agree(call(x, gamma - unit, beta), _compute(center(x), eps, gamma, beta)):
            break
    else:
        raise ValueError(
            f"{what} computes neither LayerNorm nor RMSNorm with its parameters, so they cannot be "
            f"carried over. {BY_HAND}"
        )
    known = _known_eps(old, eps)
    if eps_needed and known:
        x = known**0.5 * x
        if not _agree(call(x, gamma - unit, beta), _compute(center(x), known, gamma, beta)):
            raise ValueError(
                f"{what} computes LayerNorm or RMSNorm, but for small inputs it has no eps inside "
                "the root; give the eps= that the new norm is to have"
            )
    return unit, known


def _centered(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _compute(c: Tensor, eps: float, gamma: Tensor, beta: Tensor) -> Tensor:
    return gamma * c / (c.square().mean(dim=-1, keepdim=True) + eps).sqrt() + beta


def _agree(y: Tensor, expected: Tensor) -> bool:
    return y.shape == expected.shape and torch.allclose(y, expected, rtol=CLOSE, atol=CLOSE)


def _call(
    old: nn.Module, names: Formula, what: str, x: Tensor, gain: Tensor, offset: Tensor
) -> Tensor:
    """Return the output of ``old`` with other parameters, in float32 or wider, as float64."""
    state = dict(itertools.chain(old.named_parameters(), old.named_buffers()))
    floating = {name: value for name, value in state.items() if value.is_floating_point()}
    like = next(iter(floating.values()), torch.empty(0, device="cpu"))
    device = "cpu" if like.is_meta else like.device
    dtype = torch.promote_types(like.dtype, torch.float32)
    given = {name: value.to(dtype) for name, value in floating.items()}
    for name, value in ((names.gain, gain), (names.offset, offset)):
        if name is not None:
            given[name] = torch.as_tensor(value, dtype=dtype, device=device).expand(names.width)
    try:
        with torch.no_grad():
            y = functional_call(old, given, (x.to(device, dtype),))
    except Exception as error:
        raise ValueError(
            f"{what} cannot normalize an input of shape {tuple(x.shape)}, (batch, time, channels): "
            f"{error}. {BY_HAND}"
        ) from error
    return y.to("cpu", torch.float64)


def _known_eps(old: nn.Module, measured: float) -> float | None:
    """Return the eps that is meant by a measured one; None if it is 0 or cannot be seen."""
    if abs(measured) < LEAST_EPS:
        return 0.0 if 0.0 in _stored_eps(old) else None
    defaults = [torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)]
    meant = [*_stored_eps(old), *defaults, float(f"{measured:.2e}")]
    nearest = min(meant, key=lambda eps: abs(eps - measured))
    return nearest if abs(nearest - measured) < CLOSE * measured else measured


def _stored_eps(old: nn.Module) -> Iterator[float]:
    """Yield the numbers that ``old`` stores under a name with "eps"."""
    for name, value in vars(old).items():
        if "eps" in name and isinstance(value, (float, int)):
            yield float(value)
    if isinstance(old, nn.RMSNorm) and old.eps is None and old.weight is not None:
        yield torch.finfo(torch.promote_types(old.weight.dtype, torch.float32)).eps
