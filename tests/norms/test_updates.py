"""What counts as an update of a norm with batch statistics, where no trainer reports updates."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

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


def test_the_count_goes_on_from_a_checkpoint():
    norm = build_norm("powernorm", DIM)
    norm.load_state_dict({**norm.state_dict(), "num_updates": torch.tensor(7)})
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    for _ in range(2):
        accumulate(norm)
        optimizer.step()
    assert norm.updates_counted == 9


@pytest.mark.parametrize("name", WITH_WARMUP)
def test_a_trainer_that_reports_updates_is_believed(name):
    norm = build_norm(name, DIM, warmup_updates=2)
    for reported in (1, 2):
        norm.set_num_updates(reported)
        accumulate(norm)
        torch.optim.SGD(norm.parameters(), lr=0.1).step()
        assert norm.num_updates == norm.updates_counted == reported
        assert norm.in_warmup == (reported < 2)


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
