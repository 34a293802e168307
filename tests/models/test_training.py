"""What fairseq's training loop does to running statistics, for every norm."""

from __future__ import annotations

import logging

import pytest
import torch

from in_process import WITH_STATISTICS, everywhere, train_here
from norm_plugin.kernels import set_kernels
from norm_plugin.norms import NORM_TYPES, Norm, build_norm, norm_spec
from norm_plugin.norms.base.recomputation import is_recomputing
from norm_plugin.norms.base.statistics import BatchStatisticsNorm


def test_the_others_have_no_state():
    """So one of them stands for all where a state is what is tested."""
    for name in set(NORM_TYPES) - set(WITH_STATISTICS):
        assert not list(build_norm(name, 16).buffers()), name


QUIET = ("--no-save", "--disable-validation")


def saved(folder, name="checkpoint_last.pt"):
    return torch.load(folder / name, weights_only=True)["model"]


@pytest.mark.parametrize("name", ["powernorm", "mabn"])
def test_a_resumed_run_ends_bit_equal(name, toy, tmp_path, monkeypatch):
    """20 updates in one go, and 10 of them after those of a run that was killed at 10.

    The warm-up ends after the resumption, and so does the epoch.
    """
    flags = (
        *everywhere(name, warmup=13),
        *("--max-update", 20, "--save-interval-updates", 10, "--no-epoch-checkpoints"),
        *("--update-epoch-batch-itr", "True", "--disable-validation"),
    )
    train_here(monkeypatch, toy, tmp_path / "through", *flags)
    (halfway,) = (tmp_path / "through").glob("checkpoint_*_10.pt")
    train_here(monkeypatch, toy, tmp_path / "resumed", *flags, "--restore-file", halfway)
    through, resumed = saved(tmp_path / "through"), saved(tmp_path / "resumed")
    assert list(through) == list(resumed)
    assert all(torch.equal(resumed[key], value) for key, value in through.items())
    at_half = saved(tmp_path / "through", halfway.name)
    moved = [key for key, value in through.items() if not torch.equal(at_half[key], value)]
    assert any(key.endswith("fc1.weight") for key in moved)


class Recorder:
    """Every input that a norm saw in training, its recomputations left out."""

    def __init__(self, model):
        self.inputs = {}
        for key, module in model.named_modules():
            if isinstance(module, BatchStatisticsNorm):
                self.inputs[key] = []
                module.register_forward_pre_hook(self.hook(key))

    def hook(self, key):
        def record(norm, args):
            if norm.training and not is_recomputing():
                self.inputs[key].append((args[0].detach().clone(), args[1]))

        return record


def test_statistics_move_once_for_each_micro_batch(toy, tmp_path, monkeypatch):
    """psi^2 is what the inputs of training give, whatever validation and recomputation do."""
    recorders = []
    flags = [*everywhere("powernorm", warmup=2), "--update-freq", 2, "--max-update", 4]
    flags += ["--validate-interval-updates", 1, "--no-save", "--checkpoint-activations"]
    trainer = train_here(
        monkeypatch, toy, tmp_path, *flags, prepare=lambda m: recorders.append(Recorder(m))
    )
    norms = dict(trainer.get_model().named_modules())
    assert len(recorders[0].inputs) == 2 + 1 + 3 + 1
    for key, inputs in recorders[0].inputs.items():
        assert len(inputs) == 4 * 2, key
        again = build_norm("powernorm", 16)  # forwards alone update psi^2, warm-up or not
        set_kernels(again, "auto")  # as the model's norms
        for x, mask in inputs:
            again(x.requires_grad_(), mask)  # without a gradient, kernels do not compute it
        assert torch.equal(norms[key].psi2, again.psi2), key
        assert norms[key].updates_counted == 3


@pytest.mark.parametrize(
    ("name", "flag"), [("mabn", "--memory-efficient-fp16"), ("powernorm", "--amp")]
)
def test_low_precision_keeps_statistics_in_float32(name, flag, toy, tmp_path, monkeypatch):
    """fairseq runs only some low precision on a CPU; the rest is tested on the built model."""
    flags = (*everywhere(name, warmup=2), flag, "--max-update", 6, *QUIET)
    # fairseq meets an overflow by a call of CUDA: no scale at which one of these has one
    flags += ("--fp16-init-scale", 4)
    trainer = train_here(monkeypatch, toy, tmp_path, *flags)
    assert trainer.get_num_updates() == 6
    half = flag == "--memory-efficient-fp16"
    for norm in trainer.get_model().modules():
        if isinstance(norm, Norm):
            assert norm.weight.dtype == (torch.float16 if half else torch.float32)
            floating = [buffer for buffer in norm.buffers() if buffer.is_floating_point()]
            assert floating and all(buffer.dtype == torch.float32 for buffer in floating)
            assert all(torch.isfinite(buffer).all() for buffer in floating)
            assert norm.loss_scale == (trainer.optimizer.scaler.loss_scale if half else 1.0)


@pytest.mark.parametrize(
    ("name", "flag"), [("powernorm", "--reset-optimizer"), ("mabn", "--finetune-from-model")]
)
def test_a_new_start_keeps_statistics_and_restarts_the_warmup(
    name, flag, toy, tmp_path, monkeypatch, caplog
):
    common = (*everywhere(name), "--disable-validation")
    trainer = train_here(monkeypatch, toy, tmp_path / "old", *common, "--max-update", 6)
    checkpoint = tmp_path / "old" / "checkpoint_last.pt"
    again = ["--restore-file", checkpoint, flag, "--reset-lr-scheduler", "--reset-dataloader"]
    if flag == "--finetune-from-model":
        again = [flag, checkpoint]
    before = {key: value.clone() for key, value in trainer.get_model().named_buffers()}
    seen = {}

    def watch(model):
        norm = model.encoder.layers[0].self_attn_layer_norm

        def first_forward(norm, args):
            if norm.training and not seen:
                seen.update({key: value.clone() for key, value in norm.named_buffers()})
                seen["in_warmup"] = norm.in_warmup
                seen["num_updates"] = norm.updates_counted

        norm.register_forward_pre_hook(first_forward)

    with caplog.at_level(logging.INFO, "norm_plugin"):
        train_here(
            monkeypatch, toy, tmp_path / "new", *common, "--max-update", 2, *again, prepare=watch
        )
    said = [line for line in caplog.messages if "training restarts at update 0" in line]
    assert len(said) == 1 and "statistics of 6 updates" in said[0]
    assert seen.pop("num_updates") == 0
    warms_up = norm_spec(name).has_option("warmup_updates")
    assert seen.pop("in_warmup") == warms_up
    for key, value in seen.items():
        assert torch.equal(before[f"encoder.layers.0.self_attn_layer_norm.{key}"], value), key
