"""Every norm over awkward batches: layouts, dtypes, sizes, constant rows, rows of padding alone."""

from __future__ import annotations

import pytest
import torch
from reference import CASES

from norm_plugin.norms import build_norm

pytestmark = [
    pytest.mark.filterwarnings("error"),
    # nothing multiplies the loss here, so the factor is 1; test_loss_scale.py tests the warning
    pytest.mark.filterwarnings("ignore:.*trains in float16, and no torch.amp.GradScaler"),
    pytest.mark.filterwarnings("ignore:a .* trains on one position"),
]

DIM = 12
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=str)
every_norm = pytest.mark.parametrize(
    ("name", "options"), dict(reversed(CASES)).items(), ids=str
)  # with the first of its options


def mask_of(lengths):
    return torch.arange(max(1, *lengths)) >= torch.tensor(lengths).unsqueeze(1)


def constant(rows, lengths, dtype):
    """One value per sentence, and the mask."""
    x = torch.tensor(rows, dtype=dtype).view(1, -1, 1)
    return x.repeat(max(1, *lengths), 1, DIM), mask_of(lengths)


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
DRAWN = torch.rand(4, 3, DIM, generator=torch.Generator().manual_seed(0)) * 2 - 1
BATCHES = {
    **{name: (layout(DRAWN), mask_of([4, 2, 0])) for name, layout in LAYOUTS.items()},
    "float64": (DRAWN.double(), None),
    "zeros": (0 * DRAWN, None),
    "small": ((1e-4 * DRAWN).bfloat16(), None),
    "a row of padding": constant([0.0, 0.5], [0, 3], torch.float32),
    "nothing but padding": constant([0.0, 0.5], [0, 0], torch.float32),
    "one token": constant([0.1], [1], torch.float32),
    "constant rows": constant([0.1, -0.1, 0.3], [3, 2, 1], torch.float16),
    # no value is beyond float16, whose largest is 65504
    "large in half precision": constant([1e4, -1e4], [2, 2], torch.float16),
}


@every_case
@pytest.mark.parametrize("batch", BATCHES)
def test_keeps_shape_and_dtype_and_stays_finite(name, options, batch):
    x, mask = BATCHES[batch]
    norm = build_norm(name, DIM, **options).to(x.dtype)
    for training in (True, True, False):
        leaf = x.detach().requires_grad_()
        y = norm.train(training)(leaf, mask)
        assert y.shape == x.shape and y.dtype == x.dtype
        assert y.isfinite().all()
        y.backward(torch.ones_like(y))
        assert leaf.grad.shape == x.shape and leaf.grad.dtype == x.dtype
        # not isfinite(): the released adanorm divides a constant row by eps, 1e5 in float16
        assert not leaf.grad.isnan().any()
    for key, value in norm.state_dict().items():
        assert value.isfinite().all(), key


@every_norm
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_bfloat16_is_float32_but_for_its_rounding(name, options, size):
    x = (size * DRAWN).bfloat16()
    for training in (True, False):
        y, expected = (
            build_norm(name, DIM, **options).to(each.dtype).train(training)(each)
            for each in (x, x.float())
        )
        # the promise of the project; one rounding to 8 bits is 4e-3
        torch.testing.assert_close(y.float(), expected, rtol=2e-2, atol=2e-2)
