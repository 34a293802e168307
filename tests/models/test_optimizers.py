"""The optimizers of norm_plugin, compared with fairseq's adam."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from fairseq.optim import build_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from omegaconf import OmegaConf

from in_process import train_here
from measuring.launches import CountLaunches
from norm_plugin.models.optimizers import (
    ForeachFairseqAdam,
    MatrixDecayAdam,
    MatrixDecayForeachAdam,
)

DEVICE = os.environ.get("NORM_TEST_DEVICE", "cpu")
SHAPES = [(7, 5), (5,), (3, 4, 2), (33, 65), (65,), ()]
UPDATES = 100
UNUSED = 3  # the first updates in which one parameter has no gradient: its steps differ afterwards


def config(weight_decay=0.1, name="adam", **values):
    values = {"adam_betas": "(0.9, 0.99)", "lr": [0.01], "tpu": False, **values}
    merged = OmegaConf.merge(OmegaConf.structured(FairseqAdamConfig), values)
    return OmegaConf.merge(merged, {"weight_decay": weight_decay, "_name": name})


def settings(name, **common):
    """What fairseq's wrappers read; values of fairseq-train's flags."""
    common = {
        **{"fp16_no_flatten_grads": False, "bf16": False, "model_parallel_size": 1},
        **{"fp16_init_scale": 4, "fp16_scale_window": 30, "fp16_scale_tolerance": 0.0},
        **{"threshold_loss_scale": None, "min_loss_scale": 1e-4},
        **common,
    }
    return OmegaConf.create({"optimizer": config(name=name), "common": common})


def parameters(dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.randn(shape, generator=generator) for shape in SHAPES)
    return [torch.nn.Parameter(each.to(device, dtype)) for each in drawn]


def plain(name, device):
    params = parameters(device=device)
    return build_optimizer(config(name=name), params), params


def wrapped(wrapper, dtype, **common):
    def build(name, device):
        params = parameters(dtype, device)
        return wrapper.build_optimizer(settings(name, **common), params), params

    return build


WAYS = {
    "float32": plain,
    "fp16": wrapped(FP16Optimizer, torch.float16),
    "fp16-not-flat": wrapped(FP16Optimizer, torch.float16, fp16_no_flatten_grads=True),
    "bf16": wrapped(FP16Optimizer, torch.bfloat16, bf16=True),
    "memory-efficient-fp16": wrapped(MemoryEfficientFP16Optimizer, torch.float16),
    "memory-efficient-bf16": wrapped(MemoryEfficientFP16Optimizer, torch.bfloat16, bf16=True),
}


@pytest.fixture(params=WAYS)
def build(request, monkeypatch):
    """A function of a name and a device that returns a fairseq optimizer and its parameters."""
    if DEVICE == "cpu":  # fairseq's flat vector is on the current GPU; None is a CPU's index
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    return WAYS[request.param]


def update(optimizer, params, number, max_norm=1.0):
    """Make one update with drawn gradients of very different sizes; return their norm."""
    generator = torch.Generator().manual_seed(number)
    optimizer.zero_grad()
    loss = 0.0
    for p in params[number < UNUSED :]:
        size = 10.0 ** torch.randint(-4, 1, p.shape, generator=generator)
        loss = loss + (p * (torch.randn(p.shape, generator=generator) * size).to(p)).sum()
    optimizer.backward(loss)
    optimizer.multiply_grads(0.5)
    optimizer.set_lr(0.01 / (1 + number))
    norm = optimizer.clip_grad_norm(max_norm)
    optimizer.step()
    return norm


def assert_equal_states(one, other):
    states = [each.state_dict()["state"] for each in (one, other)]
    assert states[0].keys() == states[1].keys()
    for number, state in states[0].items():
        assert state.keys() == states[1][number].keys()
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][number][name]))


@pytest.mark.device
def test_adam_foreach_is_adam_to_the_last_bit(build):
    (adam, theirs), (foreach, ours) = build("adam", DEVICE), build("adam_foreach", DEVICE)
    # on a GPU the sums of the norm are added in another order, so nothing is clipped there
    clip = 1.0 if DEVICE == "cpu" else 0.0
    for number in range(UPDATES):
        norms = [update(adam, theirs, number, clip), update(foreach, ours, number, clip)]
        if DEVICE == "cpu":
            assert torch.equal(*norms)
        else:
            torch.testing.assert_close(*norms, rtol=1e-6, atol=0)  # a few roundings of float32
        assert all(torch.equal(a, b) for a, b in zip(theirs, ours))
    assert_equal_states(adam, foreach)
    assert not any(torch.equal(a, b) for a, b in zip(ours, parameters(ours[0].dtype, DEVICE)))


@pytest.mark.parametrize("names", [("adam", "adam_foreach"), ("adam_foreach", "adam")])
def test_a_run_resumes_with_the_other_optimizer(names, build):
    (optimizer, params), (resumed, copies) = build(names[0], "cpu"), build(names[1], "cpu")
    for number in range(6):
        update(optimizer, params, number)
    state = copy.deepcopy(optimizer.state_dict())
    masters = [getattr(each, "fp32_params", params) for each in (optimizer, resumed)]
    pairs = [*zip(copies, params), *zip(*map(reversed, map(list, map(_values, masters))))]
    for target, source in pairs:
        target.data.copy_(source.data)
    resumed.load_state_dict(state)
    for number in range(6, 12):
        update(optimizer, params, number), update(resumed, copies, number)
    assert all(torch.equal(a, b) for a, b in zip(params, copies))
    assert_equal_states(optimizer, resumed)


def _values(params):
    return params.values() if isinstance(params, dict) else params


@pytest.mark.parametrize(
    "first, second", [("adam", "adam_foreach"), ("adam_matrix_decay_foreach", "adam_matrix_decay")]
)
def test_fairseq_train_resumes_with_the_other_optimizer(first, second, toy, tmp_path, monkeypatch):
    def train(folder, optimizer, updates, *flags):
        common = ("--weight-decay", 0.1, "--clip-norm", 0.5, "--disable-validation", *flags)
        limit = ("--optimizer", optimizer, "--max-update", updates, "--no-epoch-checkpoints")
        return train_here(monkeypatch, toy, tmp_path / folder, *common, *limit)

    whole = train("whole", first, 4, "--no-save").model.state_dict()
    train("parts", first, 2)
    parts = train("parts", second, 4, "--no-save").model.state_dict()
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())


def test_the_number_of_operations_does_not_grow_with_the_parameters():
    def operations(name, parameters):
        params = [torch.nn.Parameter(torch.ones(3)) for _ in range(parameters)]
        optimizer = build_optimizer(config(name=name), params)
        for p in params:
            p.grad = torch.ones(3)
        optimizer.step()  # makes the states
        with CountLaunches() as count:
            optimizer.step()
        with CountLaunches() as of_norm:
            optimizer.clip_grad_norm(1.0)
        return count.total, of_norm.total

    assert operations("adam_foreach", 40) == operations("adam_foreach", 20)
    assert operations("adam", 40) > operations("adam", 20)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_states_that_torch_has_cast_to_half_precision_are_widened(dtype):
    """``load_state_dict`` casts them to the dtype of the parameters; fairseq's wrappers undo it."""
    runs = []
    for name in ("adam", "adam_foreach"):
        params = parameters(dtype)
        optimizer = build_optimizer(config(name=name), params)
        update(optimizer, params, UNUSED)
        inner = optimizer.optimizer
        inner.load_state_dict(copy.deepcopy(inner.state_dict()))
        assert inner.state[params[0]]["exp_avg"].dtype == dtype
        update(optimizer, params, UNUSED + 1)
        runs.append([*params, *(inner.state[p]["exp_avg_sq"] for p in params)])
    assert all(map(torch.equal, *runs))


def test_states_in_half_precision_are_refused():
    with pytest.raises(ValueError, match="--optimizer adam"):
        ForeachFairseqAdam(config(fp16_adam_stats=True), parameters())


@pytest.mark.parametrize("decaying", [MatrixDecayAdam, MatrixDecayForeachAdam])
def test_one_update_is_that_of_adam_with_the_decay_of_each_kind(decaying):
    def once(optimizer, weight_decay):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        adam = optimizer(config(weight_decay), list(model.parameters()))
        model(torch.ones(4, 3)).square().sum().backward()
        adam.step()
        return model

    ours = once(decaying, 0.1)
    assert torch.equal(ours.weight, once(FairseqAdam, 0.1).weight)
    assert torch.equal(ours.bias, once(FairseqAdam, 0.0).bias)
    assert not torch.equal(ours.bias, once(FairseqAdam, 0.1).bias)


@pytest.mark.parametrize("name", ["adam_matrix_decay", "adam_matrix_decay_foreach"])
def test_flat_parameters_are_refused(name, monkeypatch):
    # it is fairseq that asks; its own way to the flat vector needs a GPU
    flat = torch.nn.Parameter(torch.ones(4))
    monkeypatch.setattr(FP16Optimizer, "build_fp32_params", lambda *args, **kwargs: flat)
    with pytest.raises(RuntimeError, match="fp16-no-flatten-grads"):
        FP16Optimizer.build_optimizer(settings(name), parameters())
