"""fairseq's training loop with fused norms and with plain ones: the same run to rounding.

Rounding grows along a training, in the plain form too, by as much as the training is sensitive. So
two things are compared. The first update starts from equal weights: its losses differ by the
rounding of one forward. From there on the fused run may part from the plain one as a plain run
does whose weights at the start are each moved by a unit of their last bit.
"""

from __future__ import annotations

import pytest
import torch
from fairseq.tasks import FairseqTask

from in_process import everywhere, train_here
from norm_plugin.kernels import VARIABLE
from norm_plugin.norms import Norm

UPDATES = 12
WARMUP = 6
EPS = torch.finfo(torch.float32).eps
SITES = 2 + 1 + 3 + 1
"""Norms of the model: two in its encoder layer, three in its decoder layer, one after each."""
# Each norm rounds a sum over 16 channels or over the positions of a batch, a root, a quotient and
# an affine map, in another order: a few eps of its output, and the loss is smooth in all of them.
ONE_FORWARD = 8 * SITES * EPS
# What is moved by eps grows by the sensitivity of the run, the same for both. The moved run is so
# once; the fused one at every site of each update, and such roundings add up as the root of their
# number. By how much one draw of roundings moves a loss is chance: a factor of 4 stands for that.
FACTOR = 4 * (SITES * UPDATES) ** 0.5
# One of each kind of pass and of state: tests/kernels compares every norm.
FUSED = ["adanorm", "dyt", "batchnorm", "powernorm"]


def by_one_unit(model):
    """Move each weight to the next number of float32, up or down."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            up = torch.rand(weight.shape, generator=generator) < 0.5
            weight.copy_(torch.nextafter(weight, torch.where(up, torch.inf, -torch.inf)))


def train(name, toy, folder, monkeypatch, kernels="off", prepare=None):
    """The norms after training, and the loss of every update, in nats a token."""
    losses = []
    step = FairseqTask.train_step

    def recording(task, *args, **kwargs):
        loss, size, log = step(task, *args, **kwargs)
        losses.append(float(loss.detach()) / size)
        return loss, size, log

    with monkeypatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        patch.setattr(FairseqTask, "train_step", recording)
        flags = (*everywhere(name, warmup=WARMUP), "--norm-kernels", kernels)
        flags += ("--max-update", UPDATES, "--no-save", "--disable-validation")
        trainer = train_here(patch, toy, folder, *flags, prepare=prepare)
    norms = [module for module in trainer.get_model().modules() if isinstance(module, Norm)]
    return norms, torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", FUSED)
def test_losses_are_equal_to_rounding(name, toy, tmp_path, monkeypatch):
    plain, losses = train(name, toy, tmp_path / "off", monkeypatch)
    _, moved_losses = train(name, toy, tmp_path / "moved", monkeypatch, prepare=by_one_unit)
    fused, fused_losses = train(name, toy, tmp_path / "cpu", monkeypatch, kernels="cpu")
    assert all(norm.fused is None for norm in plain)
    assert len(fused) == SITES and all(norm.fused.choice == "cpu" for norm in fused)
    assert len(losses) == UPDATES
    apart = (fused_losses - losses).abs() / losses
    growth = (moved_losses - losses).square().mean().sqrt() / losses.mean()
    assert apart[0] <= ONE_FORWARD
    # eps: the losses themselves are float32
    assert apart.square().mean().sqrt() <= FACTOR * (growth + EPS)
