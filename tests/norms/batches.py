"""Steps of training one norm, for the tests of norms with batch statistics."""

from __future__ import annotations

import pytest
import torch
from reference import CASES

from norm_plugin.norms import build_norm, norm_spec

DIM = 12
FORMS = [(name, options) for name, options in CASES if norm_spec(name).batch_statistics]
every_form = pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
"""The norms with batch statistics, in each of the forms they are tested in."""


def new_norm(name, dim=DIM, **options):
    torch.manual_seed(1)
    norm = build_norm(name, dim, **options).double()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, mean=1.0)
    return norm


def step(norm, x, mask, g):
    """One forward and backward pass; y and dL/dx."""
    x = x.clone().requires_grad_()
    y = norm(x, mask)
    y.backward(g)
    return y.detach(), x.grad


def upstream(x, mask):
    """dL/dy, 0 at padding."""
    return torch.randn_like(x).masked_fill(mask.t().unsqueeze(-1), 0)


def state_of(norm):
    return {key: value.clone() for key, value in norm.named_buffers()}


def at_times_loud(x, step):
    """``x``, but every seventh step six times as large: what a norm may take for an outlier."""
    return 6 * x if step % 7 == 6 else x
