"""The checks of ``norm-plugin check-user-dir`` for a norm: the contract in docs/extending.md."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from norm_plugin.norms import BatchStatisticsNorm, Norm, NormSpec
from norm_plugin.norms.base.position_leak_check import mixes_positions

DIM, TIME, BATCH = 24, 5, 3  # 24 is divisible by most numbers of groups
LENGTHS = (5, 3, 1)


class BrokenContractError(Exception):
    """A norm or a placement breaks its contract; the message says how, and how to fix it."""


def _batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return x, (T, B, C), and its padding mask, (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TIME, BATCH, DIM, generator=generator)
    return x, torch.arange(TIME).unsqueeze(0) >= torch.tensor(LENGTHS).unsqueeze(1)


def expect(condition: bool, message: str) -> None:
    """Raise BrokenContractError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise BrokenContractError(message)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    """Return whether two tensors of the same shape are close; NaN equals NaN."""
    return torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance, equal_nan=True)


def check_shape(spec: NormSpec) -> None:
    """The output has the shape of the input, any (..., C), and is finite."""
    x, mask = _batch()
    inputs = [(x, mask), (x, None), (x[0], None), (x[0, 0], None), (x[:0], None), (x[None], None)]
    for training in (True, False):
        for given, given_mask in inputs:
            y = spec.build(DIM).train(training)(given, given_mask)
            shapes = f"input shape {tuple(given.shape)}, output shape {tuple(y.shape)}"
            expect(y.shape == given.shape, shapes)
            expect(bool(y.isfinite().all()), "a finite input gives NaN or infinite values")


def check_dtype(spec: NormSpec) -> None:
    """The output has the dtype of the input, for float32, float16 and bfloat16."""
    x, mask = _batch()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        y = spec.build(DIM).to(dtype)(x.to(dtype), mask)
        expect(y.dtype is dtype, f"input dtype {dtype}, output dtype {y.dtype}")
        expect(bool(y.isfinite().all()), f"NaN or infinite values in {dtype}")


def check_padding(spec: NormSpec) -> None:
    """Neither the values nor the amount of padding changes the output at real positions."""
    x, mask = _batch()
    valid = ~mask.t()
    spoiled = torch.cat([x.masked_fill(mask.t().unsqueeze(-1), 1e3), torch.full_like(x, -1e3)])
    wide = torch.cat([mask, torch.ones_like(mask)], dim=1)
    plain, padded = spec.build(DIM), spec.build(DIM)
    for _ in range(2):
        y, other = plain(x, mask), padded(spoiled, wide)
        same = close(y[valid], other[:TIME][valid])
        expect(same, "padding changes real positions; exclude the positions where valid is False")


def check_mask(spec: NormSpec) -> None:
    """The mask is (B, T), both for an input (T, B, C) and for (B, T, C)."""
    x, mask = _batch()
    x, mask = x[:BATCH], mask[:, :BATCH]  # T = B, so that a transposed mask has the same shape
    y, other = (
        spec.build(DIM)(x.transpose(0, 1) if first else x, mask, first) for first in (False, True)
    )
    same = close(y[~mask.t()], other.transpose(0, 1)[~mask.t()], 1e-5)
    expect(same, "batch_first=True gives other values; implement normalize(), not forward()")


def check_determinism(spec: NormSpec) -> None:
    """Equal inputs give equal outputs, in training too."""
    x, mask = _batch()
    norm, twin = spec.build(DIM), spec.build(DIM)
    twin.load_state_dict(norm.state_dict())
    expect(torch.equal(norm(x, mask), twin(x, mask)), "the same input gives different outputs")


def check_gradient(spec: NormSpec) -> None:
    """The input and every parameter have a finite gradient, and padding has none."""
    _, mask = _batch()
    norm = spec.build(DIM)
    for seed in range(2):
        leaf = _batch(seed)[0].requires_grad_()
        weights = _batch(seed + 2)[0].masked_fill(mask.t().unsqueeze(-1), 0)
        norm.zero_grad()
        (norm(leaf, mask) * weights).sum().backward()
        gradients = {"the input": leaf.grad, **{k: p.grad for k, p in norm.named_parameters()}}
        for name, gradient in gradients.items():
            expect(gradient is not None, f"no gradient reaches {name}")
            finite = gradient is not None and bool(gradient.isfinite().all())
            expect(finite, f"the gradient of {name} is NaN or infinite")
        assert leaf.grad is not None
        expect(bool(leaf.grad.any()), "the gradient of the input is 0")
        expect(not bool(leaf.grad[mask.t()].any()), "a gradient reaches the padding")


def check_exactness(spec: NormSpec) -> None:
    """The backward pass is the derivative of the forward pass, unless declared otherwise."""
    if not spec.cls.exact_gradient:
        return
    norm, (x, mask) = spec.build(DIM), _batch()
    for seed in range(2):  # what a norm keeps of gradients begins at 0
        _step(norm, seed)
    norm.double()
    names = [name for name, _ in norm.named_parameters()]
    at = [x.double().requires_grad_(), *norm.parameters()]
    weights = _batch(2)[0].double().masked_fill(mask.t().unsqueeze(-1), 0)

    def loss(leaf: Tensor, *parameters: Tensor) -> Tensor:
        state = {**_buffers(norm), **dict(zip(names, parameters))}  # each forward starts anew
        y: Tensor = torch.func.functional_call(norm, state, (leaf, mask))
        return (y * weights).sum()

    gradients = torch.autograd.grad(loss(*at), at, materialize_grads=True)
    generator, step = torch.Generator().manual_seed(0), 1e-4  # above the rounding of float32 too
    for index, gradient in enumerate(gradients):
        errors = []
        for _ in range(3):
            direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                up, down = (
                    loss(*at[:index], at[index] + size * direction, *at[index + 1 :])
                    for size in (step, -step)
                )
            errors.append(((up - down) / (2 * step) - (gradient * direction).sum()).abs())
        # For a random direction, each is about the length of the gradient's error; the median
        # leaves out a direction with a kink, as |x| has one at 0
        expect(
            bool(torch.stack(errors).median() <= 1e-3 * gradient.norm()),
            f"the gradient of {names[index - 1] if index else 'the input'} is not the derivative "
            "of the output; if that is by design, declare exact_gradient = False",
        )


def check_bound(spec: NormSpec) -> None:
    """The output of a training forward does not grow with its input, unless declared otherwise."""
    if not spec.cls.bounded:
        return
    options = {"warmup_updates": 1} if spec.has_option("warmup_updates") else {}
    x, mask = _batch()
    sizes = [
        spec.build(DIM, **options).double()(scale * x.double(), mask).abs().max().item()
        for scale in (1e6, 1e9)  # where a function that saturates has saturated
    ]
    expect(
        sizes[1] < 10 * sizes[0],
        f"1,000 times the input gives {sizes[1] / sizes[0]:.0f} times the output; declare bounded "
        "= False",
    )


def check_declaration(spec: NormSpec) -> None:
    """``batch_statistics`` says whether training mixes positions."""
    mixes = mixes_positions(spec.build(DIM))
    expect(
        not mixes or spec.batch_statistics,
        "it mixes positions in training: declare batch_statistics = True, or derive it from "
        "norm_plugin.norms.BatchStatisticsNorm",
    )
    expect(
        mixes or not spec.batch_statistics,
        "it declares batch_statistics, but no position affects another: remove the declaration",
    )


def check_state(spec: NormSpec) -> None:
    """A state dict holds everything that the next step depends on."""
    through, resumed = spec.build(DIM), spec.build(DIM)
    for seed in range(2):
        _step(through, seed)
    resumed.load_state_dict(through.state_dict())
    expect(
        all(close(y, z, 1e-6) for y, z in zip(_step(through, 2), _step(resumed, 2))),
        "after loading a state dict, the next step differs; keep statistics in registered buffers",
    )


def check_inference(spec: NormSpec) -> None:
    """No position affects another in inference, and no buffer changes."""
    norm, (x, _) = spec.build(DIM), _batch()
    for seed in range(2):
        _step(norm, seed)
    norm.eval()
    before = _buffers(norm)
    other = x.clone()
    other[1, 0] = 3 * x[1, 0] + 2
    elsewhere = torch.ones(TIME, BATCH, dtype=torch.bool)
    elsewhere[1, 0] = False
    y = norm(x)
    changed = _changed(norm, before)
    expect(
        not changed,
        f"an inference forward updates {', '.join(changed)}; update them only if self.training",
    )
    expect(
        close(y[elsewhere], norm(other)[elsewhere]),
        "in inference, one position changes the output at others; use running statistics if "
        "self.training is False",
    )


def check_recomputation(spec: NormSpec) -> None:
    """Activation checkpointing, which recomputes a forward, changes nothing."""
    plain, repeated = spec.build(DIM), spec.build(DIM)
    repeated.load_state_dict(plain.state_dict())
    for seed in range(2):
        x, mask = _batch(seed)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        y = plain(inputs[0], mask)
        z = checkpoint(repeated, inputs[1], mask, use_reentrant=True)  # as in fairseq
        (y.square().sum() + z.square().sum()).backward()
        grad, repeated_grad = (each.grad for each in inputs)
        assert grad is not None and repeated_grad is not None
        changed = _changed(repeated, _buffers(plain))
        expect(
            not changed,
            f"activation checkpointing updates {', '.join(changed)} twice; "
            "use update_running_statistic()",
        )
        expect(
            close(y, z) and close(grad, repeated_grad),
            "activation checkpointing changes the gradient; take what a forward uses besides its "
            "input from self.compute_once_per_forward(...)",
        )


def check_cumulative_average(spec: NormSpec) -> None:
    """``forward_updated_buffers`` names what a forward changes, which can be averaged."""
    norm = spec.build(DIM)
    if not isinstance(norm, BatchStatisticsNorm):
        return
    names, (x, mask) = set(norm.forward_updated_buffers), _batch()
    before = _buffers(norm)
    norm(x, mask)
    others = {*_changed(norm, before)} - names - {"num_updates"}
    expect(names <= set(before), f"forward_updated_buffers names {names - set(before)}, no buffer")
    expect(not others, f"a forward updates {others}, which forward_updated_buffers does not name")
    if not names:
        return
    norm.start_cumulative_average()
    seen = []
    for _ in range(2):  # compare vectors only, since windows fill up with batches
        norm(x, mask)
        vectors = [norm.get_buffer(name) for name in sorted(names)]
        seen.append([v.clone() for v in vectors if v.is_floating_point() and v.dim() < 2])
    same = all(map(close, *seen))
    expect(same, "the mean of two equal batches differs from one; use update_running_statistic()")


def _buffers(norm: Norm) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in norm.named_buffers()}


def _changed(norm: Norm, before: dict[str, Tensor]) -> list[str]:
    """Return the names of the buffers that differ from ``before``, sorted."""
    return [name for name in sorted(before) if not close(norm.get_buffer(name), before[name], 1e-6)]


def _step(norm: Norm, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    x, mask = _batch(seed)
    x.requires_grad_()
    y = norm(x, mask)
    y.square().sum().backward()
    inference = norm.eval()(x.detach(), mask)
    norm.train()
    assert x.grad is not None
    return y.detach(), x.grad, inference


CHECKS: dict[str, Callable[[NormSpec], None]] = {
    "shape": check_shape,
    "dtype": check_dtype,
    "padding": check_padding,
    "mask": check_mask,
    "determinism": check_determinism,
    "gradient": check_gradient,
    "exact_gradient": check_exactness,
    "bounded": check_bound,
    "batch_statistics": check_declaration,
    "inference": check_inference,
    "recomputation": check_recomputation,
    "state": check_state,
    "cumulative_average": check_cumulative_average,
}
