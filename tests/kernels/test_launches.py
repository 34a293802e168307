"""How many kernels a norm launches on a GPU, whose host they cost more time than the device."""

from __future__ import annotations

import pytest
import torch

from measuring.launches import LAUNCHES, CountLaunches
from norm_plugin.kernels import choice as choices
from norm_plugin.kernels.fused_forms import _FORMS, Fused
from norm_plugin.kernels.triton import batch_statistics, tiles
from norm_plugin.norms import build_norm
from triton_backend import OPS

DIM = 16
FORWARD_AND_BACKWARD = [
    ("layernorm-simple", {}, 2),
    ("adanorm", {}, 2),
    ("rmsnorm", {}, 3),
    ("groupnorm", {"groups": 4}, 3),
    ("dyt", {}, 3),
    ("scalenorm", {}, 3),
    ("seednorm", {}, 3),
    ("batchnorm", {}, 6),
    ("powernorm-v", {}, 6),
    ("powernorm", {"warmup_updates": 9}, 6),
    ("powernorm", {}, 4),
    ("powernorm", {"variant": "released", "warmup_updates": 9}, 6),  # one counts the forward
    ("powernorm", {"variant": "released"}, 5),
    ("regularized-batchnorm", {"loss": "sum"}, 6),
    ("regularized-batchnorm", {"loss": "sum", "distance": "deviations"}, 6),
    ("regularized-batchnorm", {"loss": "mean"}, 10),  # one number by torch
    ("repbn", {}, 6),
    ("mabn", {}, 6),
    ("unified", {"outlier_skip": "on"}, 6),
]


@pytest.fixture(autouse=True)
def gpu_that_computes_nothing(monkeypatch):
    """Every kernel of Triton is recorded, and none runs: the numbers are not defined."""

    def launch(function, *args):
        LAUNCHES.append(function.__name__)

    for module in (tiles, batch_statistics):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(choices, "select_backend", lambda choice, dtype, *_: (OPS, dtype))


@pytest.mark.parametrize("name,options,wanted", FORWARD_AND_BACKWARD)
def test_launches_of_a_layer_in_training(name, options, wanted):
    norm = build_norm(name, DIM, **options)
    norm.fused = Fused(_FORMS[type(norm)], "auto")
    if norm.batch_statistics:
        norm.set_num_updates(1)  # as a trainer does
    x, dy = torch.randn(2, 200, 3, DIM).unbind()  # of more tiles than one
    mask = torch.arange(200) >= torch.tensor([200, 90, 1]).unsqueeze(1)
    norm(x.requires_grad_(), mask)  # inverts the mask, once per forward of a model
    with CountLaunches() as launches:
        norm(x, mask).backward(dy)
    assert launches.total == wanted, (launches.triton, launches.torch)
    assert launches.synchronizing == 0
