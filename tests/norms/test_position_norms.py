"""What the norms over one position start from, and how they relate to each other."""

from __future__ import annotations

import math

import pytest
import torch

from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec
from norm_plugin.norms.detach_norm import DetachNorm

DETACHED = [name for name in NORM_TYPES if issubclass(norm_spec(name).cls, DetachNorm)]
# Both sides compute the same numbers in float64 in another order.
SAME = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("name", DETACHED)
def test_detaching_changes_the_backward_pass_only(name, ragged):
    x, mask = ragged()
    torch.testing.assert_close(
        build_norm(name, 12)(x, mask), build_norm("layernorm-simple", 12)(x, mask), **SAME
    )


def test_groupnorm_is_torchs_on_one_position(ragged):
    x, mask = ragged()
    rows = x.reshape(-1, 12)
    for groups in (1, 2, 3, 6):
        expected = torch.nn.functional.group_norm(rows, groups, eps=1e-3).reshape(x.shape)
        norm = build_norm("groupnorm", 12, groups=groups, eps=1e-3)
        torch.testing.assert_close(norm(x, mask), expected, **SAME)


def test_scalenorm_starts_as_rmsnorm_without_gain(ragged):
    x, mask = ragged()
    norm = build_norm("scalenorm", 12, eps=0).double()
    torch.nn.init.constant_(norm.g, math.sqrt(12))  # double() keeps the bits of float32
    torch.testing.assert_close(norm(x, mask), build_norm("rmsnorm", 12, eps=0)(x, mask), **SAME)
    assert build_norm("scalenorm", 12).g.tolist() == [pytest.approx(math.sqrt(12))]


def test_dyt_starts_at_its_slope(ragged):
    starts_at_its_slope("dyt", torch.tanh, *ragged())


def test_derf_starts_at_its_slope(ragged):
    starts_at_its_slope("derf", torch.erf, *ragged())


def starts_at_its_slope(name, function, x, mask):
    torch.testing.assert_close(build_norm(name, 12)(x, mask), function(0.5 * x), **SAME)
    steep = build_norm(name, 12, alpha_init=2.0)
    torch.testing.assert_close(steep(x, mask), function(2 * x), **SAME)


def test_released_adanorm_has_torchs_deviation(ragged):
    x, mask = ragged()
    expected = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-2)
    norm = build_norm("adanorm", 12, variant="released", k=0, scale=1, eps=1e-2)
    torch.testing.assert_close(norm(x, mask), expected, **SAME)


def test_released_adanorm_has_a_gradient_at_a_constant_row():
    x = torch.ones(1, 12, requires_grad=True)
    build_norm("adanorm", 12, variant="released", k=0, scale=1)(x)[0, 0].backward()
    # (1 - 1/12) / eps for the channel itself, -1/12 / eps for the others
    expected = torch.full((1, 12), -1e5 / 12)
    expected[0, 0] += 1e5
    torch.testing.assert_close(x.grad, expected)
