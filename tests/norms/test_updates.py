"""What counts as an update of a norm with batch statistics, where no trainer reports updates."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import swa_utils

from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec

DIM = 8
WITH_WARMUP = [name for name in NORM_TYPES if norm_spec(name).has_option("warmup_updates")]


def accumulate(norm, forwards=4):
    for _ in range(forwards):
        norm(torch.randn(6, 3, DIM)).square().sum().backward()


@pytest.mark.parametrize("name", WITH_WARMUP)
def test_an_update_is_a_step_of_the_optimizer_and_not_a_forward(name):
    norm = build_norm(name, DIM, warmup_updates=2)
    optimizer = torch.optim.Adam(nn.ModuleList([norm, nn.Linear(2, 2)]).parameters())
    counted = []
    for _ in range(3):
        accumulate(norm)
        optimizer.step()
        counted.append((norm.updates_counted, norm.in_warmup))
    assert counted == [(1, True), (2, False), (3, False)]


def test_the_optimizer_of_another_model_does_not_count():
    norm, other = build_norm("powernorm", DIM), nn.Linear(2, 2)
    other(torch.ones(2)).sum().backward()
    accumulate(norm, 2)
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    assert norm.updates_counted == 2  # its forwards, for no optimizer of its own was seen


@pytest.mark.parametrize("name", WITH_WARMUP)
def test_forwards_before_a_checkpoint_is_loaded_do_not_count(name):
    norm = build_norm(name, DIM, warmup_updates=2)
    start = copy.deepcopy(norm.state_dict())
    accumulate(norm)  # to try the model
    norm.load_state_dict(start)
    for updates in (1, 2):
        accumulate(norm)
        torch.optim.SGD(norm.parameters(), lr=0.1).step()
        assert norm.updates_counted == updates


@pytest.mark.parametrize("name", WITH_WARMUP)
def test_a_trainer_that_reports_updates_is_believed(name):
    norm = build_norm(name, DIM, warmup_updates=2)
    for reported in (1, 2):
        norm.set_num_updates(reported)
        accumulate(norm)
        torch.optim.SGD(norm.parameters(), lr=0.1).step()
        assert norm.updates_counted == reported
        assert norm.in_warmup == (reported < 2)
    norm.set_num_updates(3)
    assert copy.deepcopy(norm).updates_counted == norm.state_dict()["num_updates"] == 3
    for write in (norm.eval, norm.double):  # both leave the reported number in the buffer
        norm.set_num_updates(4 + norm.updates_counted)
        write()
        assert norm.num_updates == norm.updates_counted
    norm.set_num_updates(5)
    norm.load_state_dict({**norm.state_dict(), "num_updates": torch.tensor(9)})
    assert norm.updates_counted == 9


def test_the_released_powernorm_counts_forwards():
    norm = build_norm("powernorm", DIM, variant="released")
    norm.set_num_updates(7)
    accumulate(norm)
    torch.optim.SGD(norm.parameters(), lr=0.1).step()
    assert norm.updates_counted == 4


def test_a_copy_counts_the_steps_of_its_own_optimizer():
    norm = build_norm("powernorm", DIM)
    twin = copy.deepcopy(norm)
    accumulate(twin)
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert (norm.updates_counted, twin.updates_counted) == (0, 1)


@pytest.mark.parametrize("updates", range(4))
def test_a_copy_counts_from_what_it_loads(updates):
    """It does so even if its buffer has been written as often as that of the original."""
    norm = build_norm("powernorm", DIM, warmup_updates=50)
    for _ in range(updates):
        norm(torch.ones(2, DIM))
    twin = copy.deepcopy(norm)
    twin.load_state_dict({**norm.state_dict(), "num_updates": torch.tensor(100)})
    assert twin.updates_counted == 100 and not twin.in_warmup


class Wrapper(torch.optim.Optimizer):
    """An optimizer that steps others inside its own step: SAM's structure, and that of a pair."""

    def __init__(self, *inner, steps=1, own=None):
        super().__init__(own or [{"params": opt.param_groups[0]["params"]} for opt in inner], {})
        self.inner, self.steps = inner, steps

    @torch.no_grad()
    def step(self, closure=None):
        for _ in range(self.steps):
            if closure is not None:
                with torch.enable_grad():
                    closure()
            for optimizer in self.inner:
                optimizer.step()


class OwnStep(torch.optim.SGD):
    """Its step contains the step of the class it extends, which torch hooks as well."""

    def step(self, closure=None):
        return super().step(closure)


def sgd(*parameters):
    return torch.optim.SGD(parameters, lr=0.1)


STRUCTURES = {
    "one for each parameter": lambda norm: [sgd(norm.bias), sgd(norm.weight)],
    "one inside another": lambda norm: [Wrapper(sgd(*norm.parameters()))],
    "one that steps another twice": lambda norm: [Wrapper(sgd(*norm.parameters()), steps=2)],
    "a pair": lambda norm: [Wrapper(sgd(norm.weight), sgd(norm.bias))],
    "the norm's inside another's": lambda norm: [
        Wrapper(sgd(*norm.parameters()), own=nn.Linear(2, 2).parameters())
    ],
    "wrapped twice": lambda norm: [Wrapper(Wrapper(sgd(norm.weight)))],
    "a class that extends another": lambda norm: [OwnStep(norm.parameters(), lr=0.1)],
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("in_closure", [False, True])
def test_an_update_counts_once_whatever_the_structure_of_the_optimizers(structure, in_closure):
    norm = build_norm("powernorm", DIM)
    optimizers = STRUCTURES[structure](norm)
    counted = []
    for _ in range(3):
        accumulate(norm)
        for optimizer in optimizers:
            optimizer.step(*[lambda: accumulate(norm)] * in_closure)
        counted.append(norm.updates_counted)
    assert counted == [1, 2, 3]


def test_the_local_optimizer_of_a_zero_redundancy_optimizer_does_not_count():
    norm = build_norm("powernorm", DIM, sync="off")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        optimizer = ZeroRedundancyOptimizer(norm.parameters(), torch.optim.SGD, lr=0.1)
        for _ in range(3):
            accumulate(norm)
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert norm.updates_counted == 3


def test_steps_inside_the_backward_pass_count_once():
    norm = build_norm("powernorm", DIM)
    optimizers = {parameter: sgd(parameter) for parameter in norm.parameters()}
    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(lambda each: optimizers[each].step())
    for _ in range(3):
        norm(torch.randn(6, 3, DIM)).square().sum().backward()
    assert norm.updates_counted == 3


def test_a_step_that_fails_does_not_count_and_the_next_one_does():
    norm = build_norm("powernorm", DIM)
    accumulate(norm)
    optimizer = Wrapper(sgd(*norm.parameters()))

    def fail():
        raise KeyboardInterrupt

    for wanted in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(fail)
        optimizer.step()
        assert norm.updates_counted == wanted


def test_freezing_one_parameter_does_not_stop_the_count():
    norm = build_norm("powernorm", DIM)
    counted = []
    for held in (norm.weight, norm.bias):
        optimizer = sgd(held)
        for _ in range(3):
            accumulate(norm)
            optimizer.step()
            counted.append(norm.updates_counted)
    # The first step of the bias looks like the second half of the last update
    assert counted == [1, 2, 3, 3, 4, 5]


AVERAGES = {
    "equal": {},
    "ema": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
    "ema of lists": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
}


# Every norm, and every kind of average with the norm whose buffers are of the most kinds
AVERAGED = [(name, "equal") for name in NORM_TYPES if norm_spec(name).batch_statistics]
AVERAGED += [("unified", average) for average in AVERAGES if average != "equal"]


@pytest.mark.parametrize(("name", "average"), AVERAGED)
@pytest.mark.parametrize("use_buffers", [True, False])
def test_counts_are_not_averaged(name, average, use_buffers):
    model = nn.Sequential(nn.Linear(DIM, DIM), build_norm(name, DIM))
    averaged = swa_utils.AveragedModel(model, use_buffers=use_buffers, **AVERAGES[average])
    optimizer = sgd(*model.parameters())
    for _ in range(12):
        accumulate(model, 1)
        optimizer.step()
        averaged.update_parameters(model)
    norm, ours = model[1], averaged.module[1]
    assert ours.updates_counted == 12
    for key, value in norm.named_buffers():
        same = torch.equal(ours.get_buffer(key), value)
        assert same or (use_buffers and value.is_floating_point()), key
    averaged.load_state_dict(averaged.state_dict())
    assert ours.updates_counted == 12


@pytest.mark.parametrize("name", WITH_WARMUP)
def test_unfreezing_does_not_begin_the_warmup_again(name):
    norm, head = build_norm(name, DIM, warmup_updates=3), nn.Linear(DIM, DIM)
    norm.requires_grad_(False)
    counted = []
    for _ in range(3):
        head(norm(torch.randn(6, 3, DIM))).square().sum().backward()
        sgd(*head.parameters()).step()
        counted.append(norm.updates_counted)
    norm.requires_grad_(True)
    optimizer = sgd(*norm.parameters())
    for _ in range(2):
        accumulate(norm)
        optimizer.step()
        counted.append(norm.updates_counted)
    assert counted == [1, 2, 3, 4, 5] and not norm.in_warmup
    for frozen in (False, True):  # held by the optimizer in either case
        other = build_norm(name, DIM, warmup_updates=3).requires_grad_(not frozen)
        for _ in range(8):
            head(other(torch.randn(6, 3, DIM))).square().sum().backward()
        sgd(*other.parameters(), *head.parameters()).step()
        assert other.updates_counted == 1 and other.in_warmup
