"""What the trainer tells the norms: dummy batches, the scale of the loss, saving."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from norm_plugin.models import trainer_hooks
from norm_plugin.models.trainer_hooks import install, loss_scale
from norm_plugin.models.wrapping import MARK
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.norms._statistics import BatchStatisticsNorm

with_statistics = pytest.mark.parametrize(
    "name", [name for name in NORM_TYPES if norm_spec(name).batch_statistics]
)


class Doubling:
    """What of an optimizer a training step asks for."""

    scaler = SimpleNamespace(scale=lambda loss: 64 * loss)

    def backward(self, loss):
        self.scaler.scale(loss).backward()


def train_step(model, batch, ignore_grad=False):
    def criterion(model, sample):
        return model(**sample)[0].square().sum(), 1, {}

    return FairseqTask(None).train_step(batch, model, criterion, Doubling(), 5, ignore_grad)


def statistics(model):
    return {
        key: value.clone()
        for key, value in model.named_buffers()
        if "norm" in key and not key.endswith("num_updates")
    }


@with_statistics
def test_a_dummy_batch_moves_no_statistic_and_gives_no_gradient(name, build, batch):
    flags = ("--norm-type", name, "--norm-type-decoder", name, "--norm-placement", "pre")
    model = build(*flags, "--layernorm-embedding")
    train_step(model, batch)
    before = statistics(model)
    model.zero_grad()
    train_step(model, batch, ignore_grad=True)
    after = statistics(model)
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)
    train_step(model, batch)
    moved = statistics(model)
    assert not all(torch.equal(moved[key], value) for key, value in before.items())


def test_the_norms_learn_the_scale_of_the_loss(build, batch):
    model = build("--norm-type", "powernorm")
    train_step(model, batch)
    norms = [module for module in model.modules() if isinstance(module, BatchStatisticsNorm)]
    assert [float(norm.loss_scale) for norm in norms] == [64.0] * 4
    assert loss_scale(SimpleNamespace(scaler=None), torch.ones(1)) == 1.0


def test_fairseq_is_wrapped_once():
    owners = [(FairseqTask, "train_step"), (Trainer, "begin_valid_epoch")]
    owners.append((checkpoint_utils, "save_checkpoint"))
    before = [getattr(owner, name) for owner, name in owners]
    install()
    assert [getattr(owner, name) for owner, name in owners] == before
    assert all(hasattr(function, MARK) for function in before)


def test_statistics_are_averaged_before_validating_and_saving(monkeypatch):
    """Else each worker would validate with its own, and rank 0's would be saved."""
    model, seen = torch.nn.Linear(1, 1), []
    monkeypatch.setattr(
        trainer_hooks, "average_running_statistics", lambda module: seen.append(module is model)
    )
    trainer = SimpleNamespace(get_model=lambda: model, tpu=False, task=Validating(seen))
    Trainer.begin_valid_epoch(trainer, 1)
    assert seen == [True, "validation"]
    seen.clear()
    around = trainer_hooks.around_save_checkpoint(lambda *args: seen.append("saved"))
    around(None, trainer, None, None)
    assert seen == [True, "saved"]


class Validating:
    """The task that a trainer tells of a validation."""

    def __init__(self, seen):
        self.seen = seen

    def begin_valid_epoch(self, epoch, model):
        self.seen.append("validation")
