"""Low precision on the built model: what --fp16, --bf16 and --amp make of it on a GPU."""

from __future__ import annotations

import contextlib

import pytest
import torch
from reference.base import ENTRIES

from norm_plugin.norms import NORM_TYPES, Norm, norm_spec
from test_forward import everywhere

WAYS = ("half", "bfloat16", "autocast")


def low(model, way):
    """The model as fairseq prepares it, and the context of its forward."""
    if way == "autocast":
        return model, torch.autocast("cpu", dtype=torch.bfloat16)
    return getattr(model, way)(), contextlib.nullcontext()


def apart(ours, reference):
    """Length of the difference over that of the reference."""
    return ((ours.float() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NORM_TYPES)
def test_low_precision_trains_on_float32_statistics(name, way, build, batch, task):
    real = batch["prev_output_tokens"].ne(task.target_dictionary.pad())
    full = build(*everywhere(name))
    model, precision = low(build(*everywhere(name)), way)
    for update in range(2):  # one in the warm-up, one after it
        full.set_num_updates(update)
        model.set_num_updates(update)
        expected = full(**batch)[0][real]
        with precision:
            logits = model(**batch)[0][real]
        # bfloat16 has 8 bits: 2e-2 is five of its roundings, of the dozens that add up
        # by chance on the way through two layers; float16 has 11
        bound = (4e-3 if way == "half" else 2e-2) * ENTRIES[name].roundings
        assert apart(logits, expected) < bound
        logits.float().square().mean().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    norms = [module for module in model.modules() if isinstance(module, Norm)]
    reference = dict(full.named_buffers())
    assert {type(norm) for norm in norms} == {norm_spec(name).cls}
    for key, buffer in model.named_buffers():
        if "norm" in key and buffer.is_floating_point():
            assert buffer.dtype == torch.float32, key
            if not key.endswith(("nu", "psi", "gradients", "mean")):  # those near 0 are but noise
                assert apart(buffer, reference[key]) < bound, key
