"""fairseq's training loop with fused norms and with plain ones: the same run to rounding."""

from __future__ import annotations

import pytest
import torch
from fairseq.tasks import FairseqTask

from in_process import everywhere, train_here
from norm_plugin.kernels import VARIABLE, has_fused_form
from norm_plugin.norms import NORM_TYPES, Norm, norm_spec

UPDATES = 200
# fairseq sums a batch's loss in float32, whose rounding is 1e-7 of it: seen were 1.6e-6 nats.
# repbn lets x itself by, so what is rounded in one layer grows in all that follow: seen were 2e-5.
ROUNDING = {"repbn": 1e-4}
FUSED = [name for name in NORM_TYPES if has_fused_form(norm_spec(name).cls)]


def train(name, kernels, toy, folder, monkeypatch):
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
        flags = (*everywhere(name, warmup=50), "--norm-kernels", kernels)
        flags += ("--max-update", UPDATES, "--no-save", "--disable-validation")
        trainer = train_here(patch, toy, folder, *flags)
    norms = [module for module in trainer.get_model().modules() if isinstance(module, Norm)]
    return norms, torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", FUSED)
def test_losses_are_equal_to_rounding(name, toy, tmp_path, monkeypatch):
    plain, losses = train(name, "off", toy, tmp_path / "off", monkeypatch)
    fused, fused_losses = train(name, "cpu", toy, tmp_path / "cpu", monkeypatch)
    assert all(norm.fused is None for norm in plain)
    assert len(fused) == 2 + 1 + 3 + 1 and all(norm.fused.choice == "cpu" for norm in fused)
    assert len(losses) == UPDATES and losses[-20:].mean() < losses[:20].mean() - 1
    torch.testing.assert_close(fused_losses, losses, rtol=ROUNDING.get(name, 1e-6), atol=0)
