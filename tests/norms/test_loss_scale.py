"""What a norm takes for the factor of a scaled loss, where no trainer reports it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from batches import DIM, FORMS, new_norm
from norm_plugin.norms import build_norm, set_accumulation, set_loss_scale
from norm_plugin.norms.base import loss_scale
from norm_plugin.norms.base.statistics import set_ghost_batch_tokens

WITH_SCALE = ("powernorm", "mabn", "unified", "regularized-batchnorm")


def scaler_of_cpu(**settings):
    """Its scale changes every third step, by a power of two: then not even rounding differs."""
    settings = {"init_scale": 2.0**12, "growth_factor": 4.0, "growth_interval": 3, **settings}
    return torch.amp.GradScaler("cpu", **settings)


def model_of(name, **options):
    torch.manual_seed(2)
    norms = [new_norm(name, **options) for _ in range(2)]
    maps = [nn.Linear(DIM, DIM).double() for _ in range(2)]
    return nn.Sequential(maps[0], norms[0], nn.Tanh(), maps[1], norms[1])


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, DIM, generator=generator, dtype=torch.float64)
    return (model(x) - x.roll(1)).square().sum()


def train(model, scaler, steps=9, loss_of=loss_of):
    """The state after some steps of SGD, whose rate keeps them finite."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict()


def assert_same(ours, theirs):
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key


@pytest.mark.parametrize(
    ("name", "options"), [form for form in FORMS if form[0] in WITH_SCALE], ids=str
)
def test_a_scaler_changes_no_bit(name, options):
    plain = train(model_of(name, **options), scaler_of_cpu(enabled=False))
    scaler = scaler_of_cpu()
    assert_same(train(model_of(name, **options), scaler), plain)
    assert scaler.get_scale() == 2.0**18


@pytest.mark.parametrize("name", WITH_SCALE)
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_forward_has_the_scale_too(name, reentrant):
    def loss_in_parts(model, step):
        def inner(x):
            return checkpoint(model, x, use_reentrant=reentrant)

        x = torch.randn(8, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        return checkpoint(inner, x.requires_grad_(), use_reentrant=reentrant).square().sum()

    plain = train(model_of(name), scaler_of_cpu(enabled=False), 6, loss_in_parts)
    assert_same(train(model_of(name), scaler_of_cpu(), 6, loss_in_parts), plain)


@pytest.mark.parametrize("name", WITH_SCALE)
def test_a_loss_that_is_not_scaled_has_no_scale(name):
    """It may be the second loss of a step, or that of a model next to one in half precision."""
    plain, beside = model_of(name), model_of(name)
    scaler, other = scaler_of_cpu(), model_of(name)
    for step in range(4):
        loss_of(plain, step).backward()
        loss = loss_of(beside, step)
        scaler.scale(loss_of(other, step)).backward()
        loss.backward()
    assert_same(beside.state_dict(), plain.state_dict())
    for ours, theirs in zip(beside.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


class OwnScaler(torch.amp.GradScaler):
    """One with a ``scale`` of its own, as that of FSDP."""

    def scale(self, outputs):
        return outputs * 2.0**9


SCALED = {
    "a list": lambda scaler, losses: sum(scaler.scale(losses)),
    "an iterator": lambda scaler, losses: sum(scaler.scale(iter(losses))),
    "a part": lambda scaler, losses: scaler.scale(sum(losses) / 4) * 4,
    "a subclass": lambda scaler, losses: OwnScaler("cpu").scale(sum(losses)),
}


@pytest.mark.parametrize("scaled", SCALED.values(), ids=SCALED)
def test_the_scale_is_seen_in_whatever_form(scaled):
    plain, other = model_of("powernorm"), model_of("powernorm")
    scaler = scaler_of_cpu()
    for step in range(0, 8, 2):
        sum(loss_of(plain, step + part) for part in range(2)).backward()
        scaled(scaler, [loss_of(other, step + part) for part in range(2)]).backward()
    assert plain[1].nu.any()
    assert_same(other.state_dict(), plain.state_dict())


def test_no_pass_is_remembered_after_its_end():
    norm, scaler = build_norm("powernorm", DIM), scaler_of_cpu()
    x = torch.randn(4, DIM, requires_grad=True)

    def interrupt(gradient):
        raise KeyboardInterrupt

    scaler.scale(norm(x).sum()).backward()
    assert not loss_scale._PASSES
    handle = x.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        scaler.scale(norm(x).sum()).backward()
    handle.remove()
    seen = []
    x.register_hook(lambda gradient: seen.append(loss_scale.observed_loss_scale()))
    norm(x).sum().backward()
    assert not loss_scale._PASSES and seen == [None]


@pytest.mark.parametrize(
    ("tell", "told", "factor"), [(set_loss_scale, 8.0, 8.0), (set_accumulation, 4, 2.0**10)]
)
def test_a_factor_that_is_told(tell, told, factor):
    """A scale replaces that of a scaler; an accumulation divides it."""
    norm, seen = build_norm("powernorm", DIM), []
    tell(norm, told)
    get = norm.loss_scale_later()
    x = torch.randn(4, DIM, requires_grad=True)
    x.register_hook(lambda gradient: seen.append(float(get())))
    scaler_of_cpu().scale(norm(x).sum()).backward()
    assert seen == [factor]


@pytest.mark.parametrize("name", WITH_SCALE)
def test_half_precision_without_a_known_scale_is_warned_of(name):
    norm, x = build_norm(name, DIM), torch.randn(4, DIM, requires_grad=True)

    def warned(scale=lambda loss: loss, dtype=torch.float16):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.autocast("cpu", dtype=dtype):
                loss = norm(x).sum()
            scale(loss).backward()
        return [str(warning.message) for warning in caught]

    assert "set_loss_scale(model, factor)" in warned(lambda loss: 2 * loss)[0]
    assert not warned(scaler_of_cpu().scale)
    assert not warned(scaler_of_cpu(enabled=False).scale)
    assert not warned(dtype=torch.bfloat16)
    set_loss_scale(norm, 1.0)
    assert not warned()
    set_loss_scale(norm, None)
    assert warned()


def share_of_penalty(reduce, parts=1, factor=None, groups=None, **options):
    """|gradient of the penalty| / |gradient of the loss| of a linear map before the norm."""
    gradients = []
    for strength in (1.0, 0.0):
        torch.manual_seed(0)
        strengths = {"lambda_mean": 0.1 * strength, "lambda_std": 0.01 * strength}
        norm = build_norm("regularized-batchnorm", 8, **strengths, **options)
        model = nn.Sequential(nn.Linear(8, 8), norm).double()
        if factor is None:
            set_accumulation(model, parts)
        else:
            set_loss_scale(model, factor)
        if groups is not None:
            set_ghost_batch_tokens(model, 64 // groups)
        x, target = torch.randn(2, 64, 8, dtype=torch.float64) + 0.5
        for inputs, wanted in zip(x.chunk(parts), target.chunk(parts)):
            reduce((model(inputs) - wanted).square().sum(dim=1)).backward()
        gradients.append(model[0].weight.grad)
    with_penalty, without = gradients
    return ((with_penalty - without).norm() / without.norm()).item()


@pytest.mark.parametrize("per", ["batch", "token"])
@pytest.mark.parametrize("parts", [1, 4, 16])
def test_a_mean_loss_gets_the_penalty_of_a_sum(parts, per, kernels):
    expected = share_of_penalty(torch.sum, parts, 1.0, loss="sum", penalty_per=per)
    assert expected > 1e-4

    def in_parts(losses):
        return losses.mean() / parts

    for loss in ({}, {"loss": "mean"}):
        given = share_of_penalty(in_parts, parts, penalty_per=per, **loss)
        assert given == pytest.approx(expected, rel=1e-9)  # float64, in another order
    # By hand: a sum whose terms are divided by all positions of the update, and a scaled loss
    given = share_of_penalty(lambda losses: losses.sum() / 64, parts, 1 / 64, loss="sum")
    assert given == pytest.approx(share_of_penalty(torch.sum, parts, 1.0, loss="sum"), rel=1e-9)
    given = share_of_penalty(lambda losses: 8 * losses.mean(), parts, 8.0, penalty_per=per)
    assert given == pytest.approx(expected, rel=1e-9)


def test_a_mean_loss_over_groups_gets_the_penalty_of_a_sum(kernels):
    expected = share_of_penalty(torch.sum, groups=4, loss="sum")
    assert share_of_penalty(torch.mean, groups=4) == pytest.approx(expected, rel=1e-9)


def test_an_accumulation_that_nobody_told_is_warned_of():
    model = model_of("regularized-batchnorm")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def warned(passes):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(passes):
                loss_of(model, step).backward()
            optimizer.step()
        return [str(warning.message) for warning in caught]

    assert not warned(1)
    assert "3 backward passes" in warned(3)[0] and "set_accumulation(model, 3)" in warned(3)[0]
    set_accumulation(model, 1)
    assert not warned(3)
    with pytest.raises(ValueError, match="backward_passes is 0; it must be 1 or more"):
        set_accumulation(model, 0)
    summed = model_of("regularized-batchnorm", loss="sum")
    optimizer = torch.optim.SGD(summed.parameters(), lr=1e-4)
    model = summed
    assert not warned(3)
