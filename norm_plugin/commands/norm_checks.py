"""``python -m norm_plugin --check DIR``: check the norms of a user dir against the contract."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from norm_plugin.norms import NORM_TYPES, BatchStatisticsNorm, Norm, NormSpec, norm_spec
from norm_plugin.norms.base.mixing import mixes_positions

DIM, TIME, BATCH = 24, 5, 3  # 24: what most numbers of groups divide
LENGTHS = (5, 3, 1)


class BrokenContractError(Exception):
    """A norm breaks its contract; the message says how, and what to do."""


def load_norms(user_dir: Path) -> list[NormSpec]:
    """Import ``user_dir`` as fairseq does; returns the norms that it registers.

    Raises:
        ValueError: no such folder, another package of that name, or no norm in it.
    """
    folder = user_dir.resolve()
    if not folder.is_dir():
        raise ValueError(f"{user_dir} is not a folder; give the folder that you give to --user-dir")
    sys.path.insert(0, str(folder.parent))
    try:
        module = importlib.import_module(folder.name)
    except (ImportError, SyntaxError, ValueError) as error:
        raise ValueError(f"cannot import {user_dir}: {error}") from error
    finally:
        sys.path.remove(str(folder.parent))
    places = [Path(place).resolve() for place in getattr(module, "__path__", [])]
    if folder not in places:
        raise ValueError(f"another Python package is named {folder.name}; rename the folder")
    specs = [spec for spec in map(norm_spec, NORM_TYPES) if _lies_in(spec, folder)]
    if not specs:
        raise ValueError(f"{user_dir} registers no norm: import the file with @register_norm in it")
    return specs


def _lies_in(spec: NormSpec, folder: Path) -> bool:
    return folder in Path(inspect.getfile(spec.cls)).resolve().parents


def _batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """x (T, B, C) and its padding mask (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TIME, BATCH, DIM, generator=generator)
    return x, torch.arange(TIME).unsqueeze(0) >= torch.tensor(LENGTHS).unsqueeze(1)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenContractError(message)


def _close(one: Tensor, two: Tensor, tolerance: float = 1e-4) -> bool:
    return torch.allclose(one.float(), two.float(), rtol=tolerance, atol=tolerance, equal_nan=True)


def check_shape(spec: NormSpec) -> None:
    """Shape and finite values, with and without a mask, in training and inference."""
    x, mask = _batch()
    for training in (True, False):
        for given in (mask, None):
            y = spec.build(DIM).train(training)(x, given)
            _expect(y.shape == x.shape, f"{tuple(x.shape)} in, {tuple(y.shape)} out")
            _expect(bool(y.isfinite().all()), "a finite input gives NaN or infinite values")


def check_dtype(spec: NormSpec) -> None:
    """The dtype of the input comes out, for float32 and both halves."""
    x, mask = _batch()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        y = spec.build(DIM).to(dtype)(x.to(dtype), mask)
        _expect(y.dtype is dtype, f"{dtype} in, {y.dtype} out")
        _expect(bool(y.isfinite().all()), f"NaN or infinite values in {dtype}")


def check_padding(spec: NormSpec) -> None:
    """Neither the values at padding nor the amount of padding changes a real position."""
    x, mask = _batch()
    real = ~mask.t()
    spoiled = torch.cat([x.masked_fill(mask.t().unsqueeze(-1), 1e3), torch.full_like(x, -1e3)])
    wide = torch.cat([mask, torch.ones_like(mask)], dim=1)
    plain, padded = spec.build(DIM), spec.build(DIM)
    for _ in range(2):
        y, other = plain(x, mask), padded(spoiled, wide)
        same = _close(y[real], other[:TIME][real])
        _expect(
            same, "padding changes real positions; leave out the positions where valid is False"
        )


def check_mask(spec: NormSpec) -> None:
    """The mask is (B, T), whether the input is (T, B, C) or (B, T, C)."""
    x, mask = _batch()
    x, mask = x[:BATCH], mask[:, :BATCH]  # T = B: both readings fit
    y, other = (
        spec.build(DIM)(x.transpose(0, 1) if first else x, mask, first) for first in (False, True)
    )
    same = _close(y[~mask.t()], other.transpose(0, 1)[~mask.t()])
    _expect(same, "batch_first=True gives other values; implement normalize(), not forward()")


def check_determinism(spec: NormSpec) -> None:
    """The same input gives the same output, also in training."""
    x, mask = _batch()
    one, two = spec.build(DIM), spec.build(DIM)
    two.load_state_dict(one.state_dict())
    _expect(torch.equal(one(x, mask), two(x, mask)), "the same input gives different outputs")


def check_gradient(spec: NormSpec) -> None:
    """A finite gradient reaches the input and every parameter, and none the padding."""
    _, mask = _batch()
    norm = spec.build(DIM)
    for seed in range(2):
        leaf = _batch(seed)[0].requires_grad_()
        weights = _batch(seed + 2)[0].masked_fill(mask.t().unsqueeze(-1), 0)
        norm.zero_grad()
        (norm(leaf, mask) * weights).sum().backward()
        gradients = {"the input": leaf.grad, **{k: p.grad for k, p in norm.named_parameters()}}
        for name, gradient in gradients.items():
            _expect(gradient is not None, f"no gradient reaches {name}")
            finite = gradient is not None and bool(gradient.isfinite().all())
            _expect(finite, f"the gradient of {name} is NaN or infinite")
        assert leaf.grad is not None
        _expect(bool(leaf.grad.any()), "the gradient of the input is 0")
        _expect(not bool(leaf.grad[mask.t()].any()), "a gradient reaches the padding")


def check_declaration(spec: NormSpec) -> None:
    """``batch_statistics`` says whether training mixes positions."""
    mixes = mixes_positions(spec.build(DIM))
    _expect(
        not mixes or spec.batch_statistics,
        "it mixes positions in training: declare batch_statistics = True, or derive it from "
        "norm_plugin.norms.BatchStatisticsNorm",
    )
    _expect(
        mixes or not spec.batch_statistics,
        "it declares batch_statistics, but no position affects another: remove the declaration",
    )


def check_state(spec: NormSpec) -> None:
    """A state dict holds everything that the next step depends on."""
    through, resumed = spec.build(DIM), spec.build(DIM)
    for seed in range(2):
        _step(through, seed)
    resumed.load_state_dict(through.state_dict())
    _expect(
        all(_close(y, z, 1e-6) for y, z in zip(_step(through, 2), _step(resumed, 2))),
        "after loading a state dict the next step differs: keep statistics in registered buffers",
    )


def check_reestimation(spec: NormSpec) -> None:
    """A norm that says what its forwards move can make that the mean over batches."""
    norm = spec.build(DIM)
    if not (isinstance(norm, BatchStatisticsNorm) and norm.moved_by_forwards):
        return
    names, (x, mask) = set(norm.moved_by_forwards), _batch()
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    norm(x, mask)
    moved = {name for name, old in before.items() if not torch.equal(norm.get_buffer(name), old)}
    others = moved - names - {"num_updates"}
    _expect(names <= set(before), f"moved_by_forwards names {names - set(before)}, no buffer")
    _expect(not others, f"a forward moves {others}, which moved_by_forwards does not name")
    norm.start_plain_mean()
    seen = []
    for _ in range(2):  # windows fill with batches, so only vectors have to stay
        norm(x, mask)
        vectors = [norm.get_buffer(name) for name in sorted(names)]
        seen.append([one.clone() for one in vectors if one.is_floating_point() and one.dim() < 2])
    same = all(_close(one, two) for one, two in zip(*seen))
    _expect(same, "two equal batches have another mean than one: move by weight_of_batch()")


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
    "batch_statistics": check_declaration,
    "state": check_state,
    "reestimation": check_reestimation,
}


RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError),
    *(RuntimeError, TypeError, ValueError),
)
"""What a faulty norm may raise; a check during which it does has failed."""


def failure(check: Callable[[NormSpec], None], spec: NormSpec) -> str | None:
    """Why ``spec`` fails ``check``; None where it passes."""
    try:
        check(spec)
    except BrokenContractError as error:
        return str(error)
    except RAISED as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return None


def run_checks(user_dir: Path) -> Iterator[tuple[str, bool]]:
    """Yield a line for each norm and check, and whether the check passed."""
    for spec in load_norms(user_dir):
        for name, check in CHECKS.items():
            why = failure(check, spec)
            verdict = "ok  " if why is None else "FAIL"
            line = f"{verdict} {spec.name}: {name}" + (f": {why}" if why else "")
            yield line, why is None
