"""The optimizer adam_matrix_decay."""

from __future__ import annotations

import pytest
import torch
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf

from norm_plugin.models.optimizers import MatrixDecayAdam


def config(weight_decay=0.1):
    values = {"adam_betas": "(0.9, 0.99)", "weight_decay": weight_decay, "lr": [0.01], "tpu": False}
    return OmegaConf.merge(OmegaConf.structured(FairseqAdamConfig), values)


def test_one_update_is_that_of_adam_with_the_decay_of_each_kind():
    def once(optimizer, weight_decay):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        adam = optimizer(config(weight_decay), list(model.parameters()))
        model(torch.ones(4, 3)).square().sum().backward()
        adam.step()
        return model

    ours = once(MatrixDecayAdam, 0.1)
    assert torch.equal(ours.weight, once(FairseqAdam, 0.1).weight)
    assert torch.equal(ours.bias, once(FairseqAdam, 0.0).bias)
    assert not torch.equal(ours.bias, once(FairseqAdam, 0.1).bias)


def test_flat_parameters_are_refused(monkeypatch):
    # it is fairseq that asks; its own way to the flat vector needs a GPU
    flat = torch.nn.Parameter(torch.ones(4))
    monkeypatch.setattr(FP16Optimizer, "build_fp32_params", lambda *args, **kwargs: flat)
    settings = OmegaConf.create({"optimizer": config(), "common": {"fp16_no_flatten_grads": False}})
    settings.optimizer._name = "adam_matrix_decay"
    with pytest.raises(RuntimeError, match="fp16-no-flatten-grads"):
        FP16Optimizer.build_optimizer(settings, [torch.nn.Parameter(torch.ones(2, 2))])
