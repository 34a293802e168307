"""Properties of every norm over drawn batches: shapes, masks, dtypes, strides, awkward rows."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import CASES

from norm_plugin.norms import build_norm

pytestmark = [
    pytest.mark.filterwarnings("error"),
    # nothing multiplies the loss here, so the factor is 1; test_loss_scale.py tests the warning
    pytest.mark.filterwarnings("ignore:.*trains in float16, and no torch.amp.GradScaler"),
    pytest.mark.filterwarnings("ignore:a .* trains on one position"),
]

# Derandomized: the same batches in every run. No deadline: a busy machine is no failure.
bounded = settings(max_examples=15, derandomize=True, deadline=None, database=None)
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=str)
every_norm = pytest.mark.parametrize(
    ("name", "options"), dict(reversed(CASES)).items(), ids=str
)  # with the first of its options

HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALF)
WIDTHS = (12, 24, 48)  # which every option of the cases divides
MAGNITUDES = (0.0, 1e-4, 1.0, 1e4)


class Batch(NamedTuple):
    x: torch.Tensor  # (T, B, C)
    mask: torch.Tensor | None  # (B, T), True at padding
    training: bool


@st.composite
def batches(draw, dtypes=DTYPES):
    time, batch, dim = (
        draw(st.integers(1, 6)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(WIDTHS)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    # up to 1e4 in size: no value is beyond float16, whose largest is 65504
    x = torch.rand(time, batch, dim, generator=generator, dtype=torch.float64) * 2 - 1
    x *= draw(st.sampled_from(MAGNITUDES))
    if draw(st.booleans()):  # constant rows
        x[draw(st.integers(0, time - 1))] = draw(st.sampled_from((0.0, 0.1, -1e4)))
    mask = None
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, time), min_size=batch, max_size=batch))
        mask = torch.arange(time).unsqueeze(0) >= torch.tensor(lengths).unsqueeze(1)
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    return Batch(LAYOUTS[layout](x.to(draw(st.sampled_from(dtypes)))), mask, draw(st.booleans()))


def every_second(x, dim):
    """The values of ``x`` as every second entry, along ``dim``, of a tensor twice as long."""
    gaps = torch.full_like(x, float("nan"))  # what lies between must not be read
    return torch.stack([x, gaps], dim=dim + 1).flatten(dim, dim + 1).unfold(dim, 1, 2).squeeze(-1)


LAYOUTS = {
    "contiguous": lambda x: x,
    "batch first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels first": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every second channel": lambda x: every_second(x, 2),
    "every second step": lambda x: every_second(x, 0),
    "one row for all": lambda x: x[:1, :1].expand_as(x),
}


def named(rows, lengths, dtype):
    """Return a batch of one value per sentence, to add to the drawn ones."""
    x = torch.tensor(rows, dtype=dtype).view(1, -1, 1).expand(max(1, *lengths), -1, 12)
    mask = torch.arange(len(x)).unsqueeze(0) >= torch.tensor(lengths).unsqueeze(1)
    return Batch(x.contiguous(), mask, training=True)


ALL_PADDING_ROW = named([0.0, 0.5], [0, 3], torch.float32)
NOTHING_BUT_PADDING = named([0.0, 0.5], [0, 0], torch.float32)
ONE_TOKEN = named([0.1], [1], torch.float32)
CONSTANT_ROWS = named([0.1, -0.1, 0.3], [3, 2, 1], torch.float16)
LARGE_IN_HALF = named([1e4, -1e4], [2, 2], torch.float16)


def build(name, options, batch):
    norm = build_norm(name, batch.x.size(-1), **options)
    return norm.to(batch.x.dtype).train(batch.training)


@every_case
@bounded
@given(batch=batches())
@example(batch=ALL_PADDING_ROW)
@example(batch=NOTHING_BUT_PADDING)
@example(batch=ONE_TOKEN)
@example(batch=CONSTANT_ROWS)
@example(batch=LARGE_IN_HALF)
def test_keeps_shape_and_dtype_and_stays_finite(name, options, batch):
    x, mask, _ = batch
    norm = build(name, options, batch)
    for _ in range(2):
        leaf = x.detach().requires_grad_()
        y = norm(leaf, mask)
        assert y.shape == x.shape and y.dtype == x.dtype
        assert y.isfinite().all()
        y.backward(torch.ones_like(y))
        assert leaf.grad.shape == x.shape and leaf.grad.dtype == x.dtype
        # not isfinite(): the released adanorm divides a constant row by eps, 1e5 in float16
        assert not leaf.grad.isnan().any()
    for key, value in norm.state_dict().items():
        assert value.isfinite().all(), key


def of_constant_rows(x, computed_in):
    """Return the bound for constant rows: the rounding of the mean over the root of eps."""
    rows = x.detach().double().reshape(-1, x.size(-1))
    constant = rows[(rows == rows[:, :1]).all(dim=1)]
    largest = constant.abs().max().item() if constant.numel() else 0.0
    return largest * torch.finfo(computed_in).eps / 1e-5**0.5


@every_norm
@bounded
@given(batch=batches(dtypes=[torch.bfloat16]))
def test_bfloat16_is_float32_but_for_its_rounding(name, options, batch):
    y = build(name, options, batch)(batch.x, batch.mask)
    wide = batch._replace(x=batch.x.float())
    expected = build(name, options, wide)(wide.x, wide.mask)
    # the promise of the project; one rounding to 8 bits is 4e-3
    atol = 2e-2 + of_constant_rows(batch.x, torch.float32)
    torch.testing.assert_close(y.float(), expected, rtol=2e-2, atol=atol)
