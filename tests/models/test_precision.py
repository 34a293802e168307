"""Low precision on the built model: what --fp16, --bf16 and --amp make of it on a GPU."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch

from in_process import DISTINCT, train_here
from in_process import everywhere as everywhere_small
from test_forward import everywhere

WAYS = ("half", "bfloat16", "autocast")
DEVICE = os.environ.get("NORM_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.device


def low(model, way):
    """The model as fairseq prepares it, and the context of its forward."""
    if way == "autocast":
        return model, torch.autocast(DEVICE, dtype=torch.bfloat16)
    return getattr(model, way)(), contextlib.nullcontext()


def apart(ours, reference):
    """Length of the difference over that of the reference."""
    return ((ours.float() - reference).norm() / reference.norm()).item()


# The output of a model whose weights are rounded once is the measure. Low precision rounds the
# weights too, and the output of each map at most eight more times before the next map: product,
# bias, heads, output, dropout, sum, norm, activation. Nine roundings of random sign add up to the
# root of nine, 3. How far one draw of roundings moves the output is chance; a factor of 2 allows
# for that.
FACTOR = 6


def rounded(model, dtype):
    """``model``, in float32, with each weight rounded once to ``dtype``."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DISTINCT)
def test_low_precision_trains_on_float32_statistics(name, way, build, batch, task):
    real = batch["prev_output_tokens"].ne(task.target_dictionary.pad())
    dtype = torch.float16 if way == "half" else torch.bfloat16
    full = build(*everywhere(name)).to(DEVICE)
    once = rounded(build(*everywhere(name)), dtype).to(DEVICE)
    model, precision = low(build(*everywhere(name)).to(DEVICE), way)
    batch = {key: value.to(DEVICE) for key, value in batch.items()}
    real = real.to(DEVICE)
    for update in range(2):  # one in the warm-up, one after it
        for each in (full, once, model):
            each.set_num_updates(update)
        expected, moved = full(**batch)[0][real], once(**batch)[0][real]
        with precision:
            logits = model(**batch)[0][real]
        assert apart(logits, expected) < FACTOR * apart(moved, expected)
        logits.float().square().mean().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    reference, moved = dict(full.named_buffers()), dict(once.named_buffers())
    for key, buffer in model.named_buffers():
        if "norm" in key and buffer.is_floating_point():
            assert buffer.dtype == torch.float32, key
            if not key.endswith(("nu", "psi", "gradients", "mean")):  # those near 0 are but noise
                bound = FACTOR * (apart(moved[key], reference[key]) + torch.finfo(dtype).eps)
                assert apart(buffer, reference[key]) < bound, key


FLAGS = ("--fp16", "--bf16", "--amp", "--memory-efficient-fp16")


@pytest.mark.skipif(
    DEVICE == "cpu", reason="a CPU is tested in test_training.py, as far as it goes"
)
@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("name", DISTINCT)
def test_fairseq_train_learns_and_goes_on(name, flag, toy, tmp_path, monkeypatch):
    """Half of the updates, then the other half from the checkpoint."""
    flags = (*everywhere_small(name, warmup=10), flag, "--fp16-init-scale", 4)
    flags += ("--no-epoch-checkpoints", "--lr", 0.003)
    losses = []
    for updates in (15, 30):
        trainer = train_here(monkeypatch, toy, tmp_path, *flags, "--max-update", updates)
        assert trainer.get_num_updates() == updates
        last = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
        losses.append(last["extra_state"]["val_loss"])
    assert losses[1] < losses[0] < float("inf")
