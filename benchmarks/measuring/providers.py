"""The forms of a layer that are compared, each as a call without arguments."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from measuring.setups import Setup
from norm_plugin.kernels import AUTO, OFF, set_kernels
from norm_plugin.norms import norm_spec

TRANSCRIPTIONS = Path(__file__).resolve().parents[2] / "tests"
BOTH, FORWARD = "forward+backward", "forward"
DIRECTIONS = (BOTH, FORWARD)
"""Training, and inference without gradients."""
UNIT = "torch"
"""The provider that all others are compared with."""
NOT_COMPILED = "layernorm"
"""It is one call of torch's own kernel, in which torch.compile finds nothing to compile."""
Call = Callable[[], object]


class Data(NamedTuple):
    """One batch: x and dL/dy, (T, B, C), and the padding mask, (B, T)."""

    x: Tensor
    dy: Tensor
    mask: Tensor


def make_data(
    rows: int, channels: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Data:
    """A batch of ``rows`` positions, a quarter of them padding.

    Its sentences have T/2 to T positions; T * B = rows, and T is the largest power of two that
    is at most B. Raises ValueError where rows is no multiple of T.
    """
    longest = 2 ** ((rows.bit_length() - 1) // 2)
    if rows < 4 or rows % longest:
        raise ValueError(f"rows is {rows}; take a power of two from 4, or a multiple of {longest}")
    batch = rows // longest
    x, dy = torch.randn(2, longest, batch, channels, device=device).to(dtype)
    lengths = torch.linspace(longest / 2, longest, batch, device=device).round()
    mask = torch.arange(longest, device=device) >= lengths.unsqueeze(1)
    return Data(x.mul_(2).add_(0.5).requires_grad_(), dy, mask)


def of_module(name: str, setup: Setup, data: Data, direction: str) -> Call | None:
    """A layer of another library, such as ``torch.nn.LayerNorm``; None where it is not there."""
    module, _, kind = name.rpartition(".")
    try:
        layer = getattr(importlib.import_module(module), kind)(data.x.size(-1))
    except ImportError:
        return None
    return partial(STEPS[direction], layer.to(data.x.device, data.x.dtype), data)


def of_kernels(choice: str, setup: Setup, data: Data, direction: str) -> Call | None:
    """The norm with ``--norm-kernels choice``; None where that is the plain form all the same."""
    norm = setup.build(data.x.size(-1)).train(direction == BOTH).to(data.x.device, data.x.dtype)
    on_gpu = data.x.device.type == "cuda"
    if choice == "compile" and on_gpu and norm.batch_statistics:
        return None  # torch.compile does not serve them
    set_kernels(norm, choice)
    if choice != OFF and (norm.fused is None or setup.norm == NOT_COMPILED):
        return None
    return partial(STEPS[direction], partial(norm, padding_mask=data.mask), data)


def of_reference(setup: Setup, data: Data, direction: str) -> Call | None:
    """The transcription that the tests compare with, in numpy and float64, a training step."""
    if direction != BOTH or data.x.device.type != "cpu":
        return None
    sys.path.append(str(TRANSCRIPTIONS))
    from reference import REFERENCES

    channels = data.x.size(-1)
    norm = setup.build(channels)
    values = setup.values()
    options = {
        option.name: option.parse(values.get(option.name, option.default))
        for option in norm_spec(setup.norm).options
    }
    names = {"weight": "gamma", "bias": "beta"}
    parameters = {
        names.get(name, name): parameter.detach().double().numpy()
        for name, parameter in norm.named_parameters()
    }
    reference = REFERENCES[setup.norm](channels, **parameters, **options)
    rows = [tensor.detach().double().reshape(-1, channels).numpy() for tensor in data[:2]]
    valid = ~data.mask.t().reshape(-1).numpy()

    def step() -> None:
        reference.forward(rows[0], valid)
        reference.backward(rows[1])

    return step


def of_copy(setup: Setup, data: Data, direction: str) -> Call | None:
    """A copy of x, which reads and writes N C numbers; beside ``layernorm`` alone."""
    target = torch.empty_like(data.x, requires_grad=False)
    source = data.x.detach()
    return partial(target.copy_, source) if setup.norm == NOT_COMPILED else None


def _train(layer: Callable[[Tensor], Tensor], data: Data) -> None:
    data.x.grad = None
    layer(data.x).backward(data.dy)


def _infer(layer: Callable[[Tensor], Tensor], data: Data) -> None:
    with torch.no_grad():
        layer(data.x)


STEPS: dict[str, Callable[..., None]] = {BOTH: _train, FORWARD: _infer}
PROVIDERS: dict[str, Callable[[Setup, Data, str], Call | None]] = {
    UNIT: partial(of_module, "torch.nn.LayerNorm"),
    "plain": partial(of_kernels, OFF),
    "fused": partial(of_kernels, AUTO),
    "compile": partial(of_kernels, "compile"),
    "reference": of_reference,
    "copy": of_copy,
    "rmsnorm": partial(of_module, "torch.nn.RMSNorm"),
    "liger": partial(of_module, "liger_kernel.transformers.LigerLayerNorm"),
    "liger-rmsnorm": partial(of_module, "liger_kernel.transformers.LigerRMSNorm"),
    "apex": partial(of_module, "apex.normalization.FusedLayerNorm"),
    "apex-rmsnorm": partial(of_module, "apex.normalization.FusedRMSNorm"),
}
OTHERS = {"layernorm": ("liger", "apex"), "rmsnorm": ("rmsnorm", "liger-rmsnorm", "apex-rmsnorm")}
"""Layers of other libraries, with the norm beside which each is measured on a GPU."""
SLOW = {"reference": 3}
"""Repeated this often only."""


def make_calls(setup: Setup, data: Data, direction: str, providers: list[str]) -> dict[str, Any]:
    """The calls of the providers that there are for ``setup``."""
    # torch.compile keeps a few graphs of one function and then runs it uncompiled, silently
    torch._dynamo.reset()
    made = {name: PROVIDERS[name](setup, data, direction) for name in providers}
    return {name: call for name, call in made.items() if call is not None}
