"""The residual sum with dropout: the mask of every backend, its statistics, and gradients."""

from __future__ import annotations

import pytest
import torch

from norm_plugin.kernels import choice as choices
from norm_plugin.kernels.choice import BACKENDS
from norm_plugin.kernels.dropout import (
    WORD,
    dropout_mask,
    dropout_sum,
    philox,
    plain_dropout_sum,
)

# Fewer numbers than words of a counter, no multiple of any vector's length, several vectors
SHAPES = [(1,), (7,), (33, 5), (3, 130, 33), (257, 513)]
SEEDS = [0, 2**62 + 12345678901]


# Random123, tests/kat_vectors: philox4x32 with 10 rounds of counter 0 and key 0
PUBLISHED = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_philox_gives_the_published_words():
    assert [int(word) for word in philox(torch.tensor([0]), 0)] == PUBLISHED


def check_threshold(compute, device="cpu"):
    """A number is kept if its word is p 2^32 or more; the first word here is the smallest."""
    for above, stays in ((0, True), (1, False)):
        y = compute(None, torch.ones(4, device=device), (PUBLISHED[0] + above) / WORD, 0)
        assert (y != 0).tolist() == [stays, True, True, True]


def test_a_word_at_the_threshold_is_kept(ops):
    check_threshold(plain_dropout_sum)
    check_threshold(ops.dropout_sum)


@pytest.mark.device
def test_a_word_at_the_threshold_is_kept_in_triton():
    backend = pytest.importorskip("triton_backend")
    check_threshold(backend.OPS.dropout_sum, backend.DEVICE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_extension_computes_what_plain_torch_does(ops, shape, dtype):
    check_backend(ops, shape, dtype)


def test_threads_agree_to_the_bit(native):
    branch = torch.randn(300_001)  # enough for torch to take three threads
    before, outputs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outputs.append(native.dropout_sum(None, branch, 0.3, SEEDS[1]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outputs[1], outputs[0]) and torch.equal(outputs[2], outputs[0])


def check_backend(ops, shape, dtype, device="cpu"):
    stream, branch = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    for seed in SEEDS:
        expected = plain_dropout_sum(None, branch, 0.3, seed)
        actual = ops.dropout_sum(None, branch, 0.3, seed)
        assert torch.equal(actual == 0, expected == 0)
        # A product and a sum, each rounded once or, where they are contracted, only the sum
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(actual, expected, rtol=2 * eps, atol=0)
        actual = ops.dropout_sum(stream, branch, 0.3, seed)
        size = float((stream.abs() + 2 * branch.abs()).max())
        expected = plain_dropout_sum(stream, branch, 0.3, seed)
        torch.testing.assert_close(actual, expected, rtol=0, atol=2 * eps * size)


@pytest.mark.device
@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_triton_computes_what_plain_torch_does(shape, dtype):
    backend = pytest.importorskip("triton_backend")
    check_backend(backend.OPS, shape, dtype, backend.DEVICE)


def test_places_are_dropped_independently_of_each_other():
    """A share p^2 of neighbors, of equal places in two quarters, and of two seeds is dropped."""
    numbers, p = 200_000, 0.3
    dropped, dropped_other = (
        ~dropout_mask(torch.Size([numbers]), p, s, torch.device("cpu")) for s in (3, 4)
    )
    pairs = {
        "neighbors": dropped[:-1] & dropped[1:],
        "quarters": dropped[: numbers // 4] & dropped[numbers // 4 : numbers // 2],
        "seeds": dropped & dropped_other,
    }
    for name, both in pairs.items():
        # 5 standard deviations; neighbors overlap, which at most trebles the variance
        bound = 5 * (3 * p**2 * (1 - p**2) / both.numel()) ** 0.5
        assert abs(float(both.float().mean()) - p**2) < bound, name


@pytest.mark.parametrize("choice", ["off", "cpu", "auto"])
def test_backward_drops_what_forward_dropped(choice):
    if choice in BACKENDS and BACKENDS[choice].load()[0] is None:
        pytest.skip(f"no {choice} kernels here")
    check_backward(choice)


@pytest.mark.device
def test_backward_in_triton_drops_what_forward_dropped(monkeypatch):
    backend = pytest.importorskip("triton_backend")
    # The interpreter takes tensors on the CPU, which the choice of kernels gives to C++
    monkeypatch.setattr(choices, "ops_for", lambda choice, x: backend.OPS)
    check_backward("auto", backend.DEVICE)


def check_backward(choice, device="cpu"):
    torch.manual_seed(1)
    stream = torch.zeros(9, 4, 33, device=device, requires_grad=True)
    branch = torch.ones(9, 4, 33, device=device, requires_grad=True)
    y = dropout_sum(stream, branch, 0.25, choice)
    y.sum().backward()
    assert torch.equal(branch.grad, y.detach())  # dy = 1: both are the mask
    assert set(y.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.75))}
    assert torch.equal(stream.grad, torch.ones_like(stream))


def test_the_seed_of_torch_repeats_a_mask_and_the_next_call_draws_another():
    stream, branch = torch.zeros(100), torch.ones(100)
    torch.manual_seed(7)
    first, second = (dropout_sum(stream, branch, 0.5, "auto") for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(dropout_sum(stream, branch, 0.5, "auto"), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    stream, branch = torch.randn(2, 300).to(dtype)
    sums = []
    for choice in ("off", "auto"):
        torch.manual_seed(5)
        sums.append(dropout_sum(stream, branch, 0.3, choice))
        torch.manual_seed(5)
        wide = dropout_sum(stream.float(), branch.float(), 0.3, choice)
        assert torch.equal(sums[-1], wide.to(dtype))
    # float32 rounds a product here and a quotient there: then a sum may fall to either neighbor
    torch.testing.assert_close(*sums, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("choice", ["off", "auto"])
def test_a_branch_in_half_precision_leaves_the_stream_as_precise_as_it_is(choice):
    stream = torch.full((1000,), 1 + 2**-20, requires_grad=True)  # which bfloat16 rounds to 1
    branch = torch.full((1000,), 0.5, dtype=torch.bfloat16, requires_grad=True)
    y = dropout_sum(stream, branch, 0.5, choice)
    y.sum().backward()
    assert set(y.unique().tolist()) == {1 + 2**-20, 2 + 2**-20}
    assert (stream.grad.dtype, branch.grad.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(branch.grad, 2 * (y.detach() > 1.5))


def test_more_numbers_than_there_are_counters_are_refused():
    many = torch.zeros(1).expand(4 * WORD + 1)  # one number in memory
    with pytest.raises(ValueError, match="branch has 17179869185 values; at most 17179869184 are"):
        dropout_sum(many, many, 0.1, "auto")
