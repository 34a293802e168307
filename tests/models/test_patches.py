"""The wrapped functions: what the trainer tells the norms, and the table of all of them."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from composed import configure
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from commands import ROOT
from in_process import SquaredSum
from norm_plugin.models.patches import MARK, PATCHES, install, loss_scale
from norm_plugin.norms import build_norm
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

with_statistics = pytest.mark.parametrize("name", ["batchnorm", "powernorm", "mabn"])


class Doubling:
    """The part of an optimizer that a training step uses."""

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
def test_a_dummy_batch_updates_no_statistic_and_gives_no_gradient(name, build, batch):
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


CALLS = {
    "x": lambda norm, x, mask: norm(x),
    "positional": lambda norm, x, mask: norm(x, mask),
    "by name": lambda norm, x, mask: norm(x, padding_mask=mask),
    "batch first": lambda norm, x, mask: norm(
        x.transpose(0, 1), padding_mask=mask, batch_first=True
    ),
    "flat": lambda norm, x, mask: norm(x.flatten(0, 1)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_dummy_batch_updates_no_statistic_however_a_users_model_calls_its_norms(call):
    class Own(BaseFairseqModel):
        def __init__(self):
            super().__init__()
            self.norm = build_norm("batchnorm", 4)

        def forward(self, x, mask):
            return (call(self.norm, x, mask),)

    model = Own()
    batch = {"x": torch.randn(4, 4, 4), "mask": torch.zeros(4, 4, dtype=torch.bool)}
    train_step(model, batch, ignore_grad=True)
    assert not model.norm.running_mean.any()
    train_step(model, batch)
    assert model.norm.running_mean.any()


def test_the_norms_learn_the_scale_of_the_loss(build, batch):
    model = build("--norm-type", "powernorm")
    train_step(model, batch)
    norms = [module for module in model.modules() if isinstance(module, BatchStatisticsNorm)]
    assert [float(norm.loss_scale) for norm in norms] == [64.0] * 4
    assert loss_scale(SimpleNamespace(scaler=None), torch.ones(1)) == 1.0


def test_the_norms_of_fairseqs_models_know_that_the_loss_is_a_sum(build, batch):
    class Own(BaseFairseqModel):
        def __init__(self):
            super().__init__()
            self.norm = build_norm("regularized-batchnorm", 4)
            self.told = build_norm("regularized-batchnorm", 4, loss="mean")

        def forward(self, x):
            return (self.told(self.norm(x)),)

    model = build("--norm-type", "regularized-batchnorm", "--norm-type-decoder", "layernorm")
    norms = [module for module in model.modules() if isinstance(module, BatchStatisticsNorm)]
    assert norms and not any(norm.takes_mean for norm in norms)  # whoever trains it
    own = Own()
    train_step(own, {"x": torch.randn(4, 4, 4)})
    assert not own.norm.takes_mean and own.told.takes_mean


class Silent(FairseqTask):
    """A task such as translation_lev: it neither calls super nor tells the model the updates."""

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        model.train()
        loss, size, log = criterion(model, sample)
        optimizer.backward(loss * 0 if ignore_grad else loss)
        return loss, size, log

    def reduce_metrics(self, logging_outputs, criterion):
        """Log nothing, because there is no name of a loss."""


class TwoForwards(Silent):
    """A task that computes on after its super's step, which is wrapped as well."""

    def train_step(self, sample, model, criterion, *args, **kwargs):
        output = super().train_step(sample, model, criterion, *args, **kwargs)
        criterion(model, sample)
        return output


@pytest.fixture(scope="module")
def settings():
    """A training on the CPU; fairseq takes a good part of a second to compose them."""
    flags = ("--arch", "norm_transformer_multi30k_tiny", "--cpu", "--lr", "0.1")
    return configure("DATA", *flags, "--lr-scheduler", "inverse_sqrt", "--optimizer", "sgd")


@pytest.fixture
def trainer_of(build, settings):
    """fairseq's trainer for a model of flags and the class of a task."""

    def from_flags(kind, *flags):
        trainer = Trainer(copy.deepcopy(settings), kind(None), build(*flags), SquaredSum())
        trainer.optimizer.scaler = SimpleNamespace(scale=lambda loss: 64 * loss)
        return trainer

    return from_flags


@pytest.mark.parametrize("kind", [Silent, TwoForwards])
@with_statistics
def test_a_task_with_its_own_step_tells_the_norms_the_same(kind, name, trainer_of, batch):
    trainer_of(Silent, "--norm-type", name)  # its step is wrapped in either case
    trainer = trainer_of(kind, "--norm-type", name)
    trainer.reset_dummy_batch(batch)
    trainer.train_step([batch, batch])
    model = trainer.get_model()
    before = statistics(model)
    trainer.train_step([None])
    assert all(torch.equal(value, before[key]) for key, value in statistics(model).items())
    norms = [module for module in model.modules() if isinstance(module, BatchStatisticsNorm)]
    assert [float(norm.loss_scale) for norm in norms] == [64.0] * 4
    # Of the two updates one was done when the last forward began
    assert [norm.updates_counted for norm in norms] == [model.updates_done] * 4 == [1] * 4
    trainer.train_step([batch])
    assert not all(torch.equal(value, before[key]) for key, value in statistics(model).items())


def test_a_step_is_wrapped_where_it_is_defined(trainer_of):
    class Inheriting(Silent):
        pass

    trainer_of(Inheriting)
    wrapped = Silent.train_step
    assert hasattr(wrapped, MARK)
    trainer_of(Inheriting)
    assert Silent.train_step is wrapped
    assert "train_step" not in vars(Inheriting)


def test_fairseq_is_wrapped_once():
    owners = [(patch.owner, patch.name) for patch in PATCHES]
    before = [getattr(owner, name) for owner, name in owners]
    install()
    assert [getattr(owner, name) for owner, name in owners] == before
    assert all(hasattr(function, MARK) for function in before)


def test_each_says_why_and_has_a_test():
    for patch in PATCHES:
        assert patch.around.__doc__ and (ROOT / patch.test).is_file(), patch.path
