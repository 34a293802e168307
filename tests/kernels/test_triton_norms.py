"""Whole norms through the passes in Triton against their plain form."""

from __future__ import annotations

import pytest
import torch
from reference import CASES

from norm_plugin.kernels import choice as choices
from norm_plugin.kernels import has_fused_form, set_kernels
from norm_plugin.kernels.fused_forms import _FORMS, Fused
from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec, set_loss_scale
from triton_backend import DEVICE, OPS
from triton_numbers import numbers, on_device

DIM = 12
FUSED = [name for name in NORM_TYPES if has_fused_form(norm_spec(name).cls)]
NORMS = [(name, options) for name, options in CASES if name in FUSED]
FIRST = [(name, options) for name, options in dict(reversed(CASES)).items() if name in FUSED]
# The interpreter warns where a lane that is not stored divides by 0, which a GPU does in silence
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]


@pytest.fixture(autouse=True)
def triton_everywhere(monkeypatch):
    """The interpreter takes tensors on the CPU, which the choice of kernels gives to C++."""
    monkeypatch.setattr(choices, "select_backend", lambda choice, dtype, *_: (OPS, dtype))


def both_forms(name, options, dtype=torch.float32, dim=DIM):
    """The plain and the fused form of one norm, with the same parameters, none of them 0 or 1."""
    forms = []
    for choice in ("off", "auto"):
        torch.manual_seed(1)
        norm = build_norm(name, dim, **options).to(DEVICE, dtype)
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape).to(parameter))
        set_kernels(norm, "off")
        if choice == "auto":
            norm.fused = Fused(_FORMS[type(norm)], choice)
        forms.append(norm)
    return forms


def batch_of(seed, dtype=torch.float32, padding=True):
    """x and dL/dy, (T, B, C), and the mask (B, T) of the lengths 7, 5, 2 and 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, 4, DIM, generator=generator) * torch.linspace(0.5, 2, DIM) + 0.3
    g = torch.randn(7, 4, DIM, generator=generator)
    mask = torch.arange(7).unsqueeze(0) >= torch.tensor([7, 5, 2, 1]).unsqueeze(1)
    g = g.masked_fill(mask.t().unsqueeze(-1), 0) if padding else g
    return x.to(DEVICE, dtype), g.to(DEVICE, dtype), mask.to(DEVICE) if padding else None


def train(norm, x, g, mask):
    """One forward and backward pass: y and every gradient, by name."""
    norm.zero_grad()
    x = x.detach().requires_grad_()
    y = norm(x, mask)
    y.backward(g)
    return {"y": y.detach(), "x": x.grad, **{n: p.grad for n, p in norm.named_parameters()}}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's, as meant
@pytest.mark.parametrize("size", [1e20, 1e30])
@pytest.mark.parametrize("name", FUSED)
def test_where_the_plain_form_is_finite_so_are_the_kernels(name, size):
    """Their squares are beyond float32 here; docs/architecture.md says where the sums are too."""
    options = {"layer_scale_groups": 0} if norm_spec(name).has_option("layer_scale_groups") else {}
    x, g, mask = batch_of(0)
    plain, fused = (train(norm, size * x, g, mask) for norm in both_forms(name, options))
    for key, wanted in plain.items():
        assert fused[key][wanted.isfinite()].isfinite().all(), key


def compare(plain, fused, **tolerance):
    assert plain.keys() == fused.keys()
    for name, wanted in plain.items():
        torch.testing.assert_close(
            fused[name], wanted, **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name,options", NORMS)
def test_steps_of_training_and_inference(name, options):
    """The steps cover a norm's warm-up, the time after it, and a window that fills up.

    The code between the steps of a norm is the same for each backend, and is compared for longer
    in ``test_fused_norms.py``.
    """
    if "warmup_updates" in options:
        options = {**options, "warmup_updates": 1}
    plain, fused = both_forms(name, options)
    # float32, sums of 15 to 28 terms in another order; updated statistics have the same error
    close = {"rtol": 1e-4, "atol": 2e-5}
    steps = 2 + options.get("window", 0)
    for step in range(steps):
        batch = batch_of(step)
        compare(train(plain, *batch), train(fused, *batch), **close)
    compare(dict(plain.named_buffers()), dict(fused.named_buffers()), **close)

    x, _, mask = batch_of(steps)
    with torch.no_grad():
        torch.testing.assert_close(fused.eval()(x, mask), plain.eval()(x, mask), **close)


# Rows, channels, groups of them, and eps. A tile has 2,048 numbers: one that is not full, where
# without eps the rate of a missing row is infinite; several tiles with a rest, and several of a
# program; groups that are no power of two; several spans of channels
SIZES = [(5, 12, 3, 0.0), (300, 12, 3, 1e-5), (37, 100, 2, 1e-5), (37, 513, 0, 1e-5)]


FORMS = [(name, {}) for name in FUSED]
FORMS += [(name, {"variant": "released"}) for name in FUSED if norm_spec(name).released_cls]


@pytest.mark.parametrize(("rows", "channels", "groups", "eps"), SIZES)
@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_any_size_with_anything_at_padding(name, options, rows, channels, groups, eps):
    given = {"layer_scale_groups": groups, "groups": max(groups, 1), "eps": eps}
    own = {key: value for key, value in given.items() if norm_spec(name).has_option(key)}
    plain, fused = both_forms(name, {**options, **own}, dim=channels)
    plain.double().cpu()
    set_loss_scale(torch.nn.ModuleList([plain, fused]), 4.0)
    mask = torch.arange(rows).unsqueeze(0) % 3 == 1
    for step in range(1 + plain.batch_statistics):  # the second one has what the first has left
        x, g = numbers(2, rows, 1, channels, seed=step)
        if plain.batch_statistics and not options:
            x[mask.t()] = torch.nan
        wanted = {**train(plain, x, 4 * g, mask), **dict(plain.named_buffers())}
        results = {
            **train(fused, *on_device(x, 4 * g), mask.to(DEVICE)),
            **dict(fused.named_buffers()),
        }
        for key, value in wanted.items():
            # sums of up to 19,000 terms in another order, whose parts are at most of this size
            size = max(rows**0.5, value.abs().max().item())
            torch.testing.assert_close(
                *(results[key].cpu().double(), value.double()),
                **{"rtol": 2e-5, "atol": 2e-5 * size},
                msg=lambda text, key=key: f"{key}: {text}",
            )


@pytest.mark.parametrize("name,options", FIRST)
def test_half_precision(name, options):
    dtype = torch.bfloat16
    plain, fused = both_forms(name, options, dtype)
    # Both compute in float32 and round once, so a rare number falls to the other neighbor; the
    # next step starts from statistics that are float32
    close = {"rtol": torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps / 16}
    for step in range(3):
        batch = batch_of(step, dtype)
        compare(train(plain, *batch), train(fused, *batch), **close)
    statistics = [dict(norm.named_buffers()) for norm in (plain, fused)]
    # three steps of float32 sums of up to 28 terms of size 1 to 6: at worst 28 roundings of 6e-8
    compare(*statistics, rtol=1e-5, atol=1e-5)

    x, _, mask = batch_of(3, dtype)
    with torch.no_grad():
        torch.testing.assert_close(fused.eval()(x, mask), plain.eval()(x, mask), **close)


@pytest.mark.parametrize("name,options", FIRST)
def test_a_view_that_is_not_contiguous_and_an_empty_one(name, options):
    plain, fused = both_forms(name, options)
    x, g, _ = batch_of(0, padding=False)
    views = x.transpose(0, 1)[:, ::2], g.transpose(0, 1)[:, ::2], None
    compare(train(plain, *views), train(fused, *views), rtol=1e-4, atol=2e-5)
    for empty in (x[:0], x[:, :0]):
        compare(train(plain, empty, empty, None), train(fused, empty, empty, None), rtol=0, atol=0)
    close = {"rtol": 1e-4, "atol": 2e-5}
    compare(dict(plain.named_buffers()), dict(fused.named_buffers()), **close)
