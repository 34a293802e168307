"""The C++ passes at the ends of float32's range and precision, and arguments they refuse."""

from __future__ import annotations

import pytest
import torch
from reference import WITH_MOMENTS

from norm_plugin.kernels import has_fused_form
from norm_plugin.kernels.passes import BatchRule, Row, RowRule
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.norms.base.means import update_running_average

EPS = torch.finfo(torch.float32).eps
FUSED = [name for name in NORM_TYPES if has_fused_form(norm_spec(name).cls)]
DIM = 36  # no multiple of any vector's length: whole vectors, and numbers beside them


def bounded(ops, function, x):
    """f(x) and f'(x), and the gradient of the slope alpha of f(alpha x) for dL/dy = 1."""
    ones, weight, bias = torch.ones(1), torch.ones(DIM), torch.zeros(DIM)
    y = ops.pointwise_forward(x, ones, None, weight, bias, function)
    dx, dslope, *_ = ops.pointwise_backward(torch.ones_like(x), x, ones, None, weight, function)
    return y, dx, dslope


@pytest.mark.parametrize("function", ["tanh", "erf"])
@pytest.mark.parametrize(
    ("value", "wanted"), [(3e38, 1.0), (torch.inf, 1.0), (torch.nan, torch.nan)]
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_function_of_what_is_no_ordinary_number(ops, function, value, wanted, sign):
    y, dx, _ = bounded(ops, function, torch.full((4, DIM), sign * value))
    torch.testing.assert_close(y, torch.full_like(y, sign * wanted), rtol=0, atol=0, equal_nan=True)
    assert dx.isnan().all() if wanted != wanted else dx.abs().max() < 1e-30


@pytest.mark.parametrize("function", ["tanh", "erf"])
def test_a_function_is_bounded_rising_and_exact_to_rounding(ops, function):
    x = torch.linspace(-13, 13, 2000 * DIM).view(-1, DIM)
    y, dx, _ = bounded(ops, function, x)
    assert y.abs().max() <= 1 and dx.min() >= 0
    wide = x.double().requires_grad_()
    exact = getattr(torch, function)(wide)
    exact.sum().backward()
    # The fit is exact to a quarter of eps; numerator, denominator and quotient round by some
    # halves of it more. In a slope 1 - f^2 the error of f counts twice; e^(-v^2) has that of its
    # exponent, v^2 eps, beside which it is small: v^2 e^(-v^2) < 0.4.
    torch.testing.assert_close(y.double(), exact.detach(), rtol=4 * EPS, atol=0)
    torch.testing.assert_close(dx.double(), wide.grad, rtol=8 * EPS, atol=8 * EPS)


@pytest.mark.parametrize("weight", [0.05, 0.5, 0.9, 1.0])
def test_a_statistic_moves_between_sizes_that_are_far_apart(native, weight):
    ours, theirs = torch.tensor([1e8, 1.0, 3.0]), torch.tensor([1e8, 1.0, 3.0])
    x, ones = torch.tensor([[1.0, 1e4, 2.0]]), torch.ones(3)
    rule = BatchRule(0, 1e-5, center=False)
    native.batch_forward(x, None, ones, ones, None, None, ours, weight, rule, None)
    value = x[0].square()
    update_running_average(theirs, value, weight, torch.tensor(1.0))
    # three operations, of which the last rounds what it stores
    torch.testing.assert_close(ours, theirs, rtol=2 * EPS, atol=0)
    assert weight < 1 or torch.equal(ours, value)


@pytest.mark.parametrize("groups", [0, -1, 5])
def test_groups_that_do_not_divide_the_channels_are_refused(native, groups):
    x = torch.randn(4, DIM)
    message = f"groups is {groups}; it must be 1 or more and divide the 36 channels"
    with pytest.raises(ValueError, match=message):
        native.row_forward(x, None, None, None, None, RowRule(1e-5, groups=groups))
    if groups:  # 0 groups mean no pre-scaling
        with pytest.raises(ValueError, match=message):
            native.column_moments(x, None, groups, 1e-5, True)


@pytest.mark.parametrize("row", [0, 100])
def test_an_outlier_costs_the_variance_no_digits(ops, row):
    """It may be at any position; the deviation is then mostly the outlier's."""
    torch.manual_seed(0)
    x = torch.randn(128, DIM)  # a block, whose first row is what others are compared with
    x[row] += 1e4
    ones = torch.ones(DIM)
    rule = BatchRule(0, 1e-5)
    _, numbers, _ = ops.batch_forward(x, None, ones, ones, None, None, None, 0.0, rule, None)
    variance = numbers[Row.SQUARE]
    wanted = x.double().var(dim=0, unbiased=False)
    # 128 positive terms, each rounded some times, in a sum that rounds 128 times: the errors, of
    # either sign, gather as the root of their number
    torch.testing.assert_close(variance.double(), wanted, rtol=128**0.5 * EPS, atol=0)


@pytest.mark.parametrize("name", WITH_MOMENTS)
def test_huge_inputs_stay_finite(name, ops, pair):
    """Squares of 1e18 fit into float32, and 60 of them too; squares of their sum do not."""
    options = {"layer_scale_groups": 0} if norm_spec(name).has_option("layer_scale_groups") else {}
    plain, fused = pair(name, options, DIM, torch.float32)
    torch.manual_seed(0)
    x, g = torch.randn(2, 60, DIM).unbind()
    x = 1e18 * (x + 1)
    results = []
    # Plain in float64: in float32 autograd divides by the deviation's third power, 1e54
    for norm, dtype in ((plain.double(), torch.float64), (fused, torch.float32)):
        z = x.to(dtype).requires_grad_()
        y = norm(z)
        y.backward(g.to(dtype))
        results.append((y.detach(), z.grad, norm.running_mean, norm.running_var))
    for ours, theirs in zip(results[1], results[0]):
        assert ours.isfinite().all()
        # sums of 60 terms, and of numbers of the size of the largest one
        atol = 60 * EPS * theirs.abs().max().item()
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("size", [1e20, 1e30])
@pytest.mark.parametrize("name", FUSED)
def test_where_the_plain_form_is_finite_so_are_the_kernels(name, size, pair):
    """Their squares are beyond float32 here; docs/architecture.md says where the sums are too."""
    options = {"layer_scale_groups": 0} if norm_spec(name).has_option("layer_scale_groups") else {}
    torch.manual_seed(0)
    x, g = torch.randn(2, 300, DIM).unbind()  # more than two blocks of rows
    results = []
    for norm in pair(name, options, DIM, torch.float32):
        z = (size * (x + 1)).requires_grad_()
        y = norm(z)
        y.backward(g)
        parameters = {key: parameter.grad for key, parameter in norm.named_parameters()}
        results.append({"y": y.detach(), "x": z.grad, **parameters})
    plain, fused = results
    for key, wanted in plain.items():
        finite = wanted.isfinite()
        assert fused[key][finite].isfinite().all(), key
    finite = plain["y"].isfinite()
    wanted = plain["y"][finite]
    # a few operations, which round numbers of the size of the largest one
    atol = 4 * EPS * wanted.abs().max().item()
    torch.testing.assert_close(fused["y"][finite], wanted, rtol=1e-5, atol=atol)
