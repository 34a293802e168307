"""Each pass in Triton against its formula: any width and length, padding, half precision."""

from __future__ import annotations

import math

import pytest
import torch

import slow_passes
from norm_plugin.kernels.passes import RowRule
from norm_plugin.kernels.triton import columns
from triton_backend import DEVICE, OPS
from triton_numbers import numbers, on_device, rounded, same

# The interpreter warns where a lane that is not stored divides by 0, which a GPU does in silence
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]

# A tile has 2,048 numbers: one that is not full, several with a rest, several spans of channels
# and several tiles a program
SIZES = [(1, 12), (37, 100), (300, 12), (37, 513)]
RULES = {
    "layernorm": RowRule(1e-5),
    "rmsnorm": RowRule(1e-5, center=False),
    "adanorm": RowRule(1e-5, phi=(2.0, 0.1)),
    "adanorm released": RowRule(1e-5, released=True, phi=(2.0, 0.1)),
    "detached mean": RowRule(1e-5, through_mean=False),
    "detached deviation": RowRule(1e-5, through_rstd=False),
    "groupnorm": RowRule(1e-5, groups=3),
}
# --- rows


@pytest.mark.parametrize(
    "name,rows,channels",
    [(name, *size) for name, rule in RULES.items() for size in SIZES if size[1] % rule.groups == 0],
)
def test_rows(name, rows, channels):
    rule = RULES[name]
    affine = rule.phi is None and rule.through_mean and rule.through_rstd
    check_rows(rule, rows, channels, "weight bias" if affine else "", torch.float32)


@pytest.mark.parametrize("rows,channels", SIZES)
def test_rows_whose_gain_depends_on_the_input(rows, channels):
    check_rows(RULES["rmsnorm"], rows, channels, "weight alpha b", torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_in_half_precision(dtype):
    check_rows(RULES["groupnorm"], 37, 12, "weight bias", dtype)


def check_rows(rule, rows, channels, given, dtype):
    x = numbers(rows, channels, offset=0.5).requires_grad_()
    dy = numbers(rows, channels, seed=1)
    parameters = [
        numbers(channels, seed=place).requires_grad_() if name in given.split() else None
        for place, name in enumerate(("weight", "bias", "alpha", "b"))
    ]
    if parameters[3] is not None:  # x . b of size 1, where tanh bends
        parameters[3] = (parameters[3].detach() / channels**0.5).requires_grad_()
    wanted = slow_passes.row_y(x, *parameters, rule)
    leaves = [x, *(each for each in parameters if each is not None)]
    gradients = iter(torch.autograd.grad(wanted, leaves, dy))

    wide = on_device(*(None if each is None else each.detach() for each in parameters))
    near, near_dy = on_device(x.detach(), dy, dtype=dtype)
    y, mean, rstd = OPS.row_forward(near, *wide, rule)
    weight, _, *gate = wide
    dx, *others = OPS.row_backward(near_dy, near, mean, rstd, weight, *gate, rule)

    same(y, wanted.detach(), dtype, **rounded(dtype))
    same(dx, next(gradients), dtype, **rounded(dtype))
    assert (mean is None) == (not rule.center)
    assert rstd.shape == (rows, rule.groups)
    for gradient, parameter in zip(others, parameters, strict=True):
        if parameter is not None:
            same(gradient, next(gradients))


def test_a_row_of_equal_numbers_has_no_gradient_through_its_released_deviation():
    x = torch.ones(2, 12, device=DEVICE)
    rule = RULES["adanorm released"]
    _, mean, rstd = OPS.row_forward(x, *[None] * 4, rule)
    dx, *_ = OPS.row_backward(torch.ones_like(x), x, mean, rstd, *[None] * 3, rule)
    assert dx.isfinite().all()


# --- bounded functions


@pytest.mark.parametrize("rows,channels", [(37, 100), (37, 513)])
@pytest.mark.parametrize("function", ["tanh", "erf"])
@pytest.mark.parametrize("with_shift", [True, False])
def test_bounded_functions(function, with_shift, rows, channels):
    x = numbers(rows, channels)
    dy, weight, bias = (numbers(*s, seed=1) for s in ((rows, channels), (channels,), (channels,)))
    slope, shift = torch.tensor([0.7]).double(), torch.tensor([0.3]).double()
    inputs = [tensor.requires_grad_() for tensor in (x, slope, shift, weight, bias)]
    used = shift if with_shift else None
    wanted = slow_passes.pointwise_y(x, function, slope, used, weight, bias)
    given = inputs if with_shift else [x, slope, weight, bias]
    gradients = torch.autograd.grad(wanted, given, dy)

    near = on_device(*(t if t is None else t.detach() for t in (x, slope, used, weight)))
    y = OPS.pointwise_forward(*near, *on_device(bias.detach()), function)
    actual = OPS.pointwise_backward(*on_device(dy), *near, function)

    same(y, wanted.detach())
    actual = actual if with_shift else [*actual[:2], *actual[3:]]
    for ours, gradient in zip(actual, gradients):
        # the slope's is a sum of 19,000 terms of size 1, about 140 in all: in tiles of 2,048, whose
        # partial sums, of size 45, round by 3e-6 each, a few dozen times
        same(ours, gradient, rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize("function", ["tanh", "erf"])
def test_bounded_functions_are_right_to_the_last_digits_everywhere(function):
    x = torch.cat([torch.logspace(-8, 2, 500), torch.linspace(0, 10, 524)])
    x = torch.stack([x, -x, x.flip(0)])
    x[2, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    ones, zeros = torch.ones(1024), torch.zeros(1024)
    y = OPS.pointwise_forward(*on_device(x, ones[:1], None, ones, zeros), function)
    # One division and one exponential of float32, whose error is 2.5 eps at most on any machine
    # and counts with less than its whole: four eps (1.2e-7)
    same(y, getattr(torch, function)(x.double()), rtol=5e-7, atol=0, equal_nan=True)


# --- all


def test_no_rows():
    x = torch.ones(0, 12, device=DEVICE)
    ones = x.new_ones(12)
    y, mean, rstd = OPS.row_forward(x, ones, ones, None, None, RULES["groupnorm"])
    assert y.shape == (0, 12)
    gradients = OPS.row_backward(x, x, mean, rstd, ones, None, None, RULES["groupnorm"])
    for gradient in gradients[1:3]:
        assert torch.equal(gradient, 0 * ones)
    zeros = x.new_zeros(3, 12)
    for center in (True, False):
        sums, _ = columns.column_moments(x, None, 3, 1e-5, center)
        assert torch.equal(columns.merge_programs(sums)[0] if center else sums.sum(0), zeros)
    y, rstd, sums = columns.map_columns(x, None, None, 3, 1e-5, None, ones, ones, None, sums=True)
    assert y.shape == (0, 12)
    assert torch.equal(sums.sum(0), zeros)
    assert torch.equal(columns.partial_products(x, x, rstd, None, None).sum(0), zeros)


def test_no_real_position():
    x, nowhere = torch.ones(5, 12, device=DEVICE), torch.zeros(5, dtype=torch.bool, device=DEVICE)
    sums, _ = columns.column_moments(x, nowhere, 0, 1e-5, True)
    assert torch.equal(columns.merge_programs(sums), x.new_zeros(1, 3, 12))


def test_the_same_input_gives_the_same_bits():
    x, dy = on_device(numbers(700, 12), numbers(700, 12, seed=1))
    ones = x.new_ones(12)
    first, second = (
        columns.column_gradient(dy, x, None, None, None, ones, None, ones, sums=True)[1]
        for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("x", "dy", "valid", "complaint"),
    [
        (torch.ones(4, 6).t(), None, None, "x must be contiguous"),
        (torch.ones(6, 4), torch.ones(6, 4).half(), None, "dy must be contiguous and like x"),
        (
            torch.ones(6, 4),
            None,
            torch.ones(5, dtype=torch.bool),
            "valid must be bool.* of shape .6,.",
        ),
    ],
)
def test_tensors_that_kernels_would_misread_are_refused(x, dy, valid, complaint):
    with pytest.raises(ValueError, match=complaint):
        columns.partial_products(x if dy is None else dy, x, None, valid, None)


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="groups is 5; it must divide the 12 channels"):
        columns.column_moments(torch.ones(3, 12, device=DEVICE), None, 5, 1e-5, True)


@pytest.mark.parametrize(
    ("x", "taken"),
    [
        (torch.ones(2, 8192), True),
        (torch.ones(2, 8193), False),
        (torch.ones(2, 8).bfloat16(), True),
        (torch.ones(2, 8).double(), False),
        (torch.ones(2, 8, device="meta"), False),
    ],
)
def test_what_it_takes(x, taken):
    assert OPS.takes(x if x.is_meta else x.to(DEVICE)) == taken
