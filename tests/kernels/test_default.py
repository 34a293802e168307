"""A norm that is built in any torch code computes by the kernels of its device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from norm_plugin.kernels import VARIABLE, has_fused_form, set_kernels
from norm_plugin.kernels.fused_forms import Fused
from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec, replace_norms


@pytest.mark.parametrize("name", NORM_TYPES)
def test_a_built_norm_has_its_fused_form(name, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert isinstance(build_norm(name, 8).fused, Fused) == has_fused_form(norm_spec(name).cls)
    monkeypatch.setenv(VARIABLE, "off")
    assert build_norm(name, 8).fused is None


def test_a_replaced_norm_too_until_it_is_switched_off(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    replace_norms(model, "rmsnorm")
    x = torch.randn(3, 8)
    fast = model(x)
    assert isinstance(model[1].fused, Fused)
    set_kernels(model, "off")
    assert model[1].fused is None
    torch.testing.assert_close(model(x), fast)
