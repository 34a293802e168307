"""What single passes in Triton promise beyond whole norms: digits, bits, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch

from norm_plugin.kernels.passes import RowRule
from norm_plugin.kernels.triton import columns
from triton_backend import DEVICE, OPS
from triton_numbers import numbers, on_device, same

# The interpreter warns where a lane that is not stored divides by 0, which a GPU does in silence
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]


def test_a_row_of_equal_numbers_has_no_gradient_through_its_released_deviation():
    x = torch.ones(2, 12, device=DEVICE)
    rule = RowRule(1e-5, released=True, phi=(2.0, 0.1))
    _, mean, rstd = OPS.row_forward(x, *[None] * 4, rule)
    dx, *_ = OPS.row_backward(torch.ones_like(x), x, mean, rstd, *[None] * 3, rule)
    assert dx.isfinite().all()


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


def test_an_upstream_gradient_at_padding_reaches_nothing_but_the_sum_over_all():
    x, dy = on_device(numbers(40, 12), numbers(40, 12, seed=1))
    valid = torch.arange(40, device=DEVICE) % 3 != 1
    ones = torch.ones(12, device=DEVICE)
    rstd = columns.column_moments(x, None, 3, 1e-5, False)[1]
    (clean_dx, clean), (dx, sums) = (
        columns.column_gradient(g, x, rstd, valid, None, ones, None, ones, sums=True)
        for g in (dy, dy.masked_fill(~valid[:, None], math.nan))
    )
    assert torch.equal(dx, clean_dx)
    assert torch.equal(sums[:, 1], clean[:, 1])
    assert sums.sum(0)[0].isnan().all()


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
