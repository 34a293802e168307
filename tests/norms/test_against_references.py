"""Each norm against its slow transcription: forward, every gradient, statistics, 25 steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import CASES, REFERENCES

from batches import at_times_loud
from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec

STEPS = 25
# Both sides compute in float64 and differ in the order of sums only; 25 steps of statistics
# gather rounding of 1e-16 each to well below this.
TOLERANCE = 1e-10
PAPER_NAMES = {"weight": "gamma", "bias": "beta"}


def test_every_norm_has_a_transcription():
    assert set(NORM_TYPES) == set(REFERENCES)


def build_pair(name, options, dim):
    """The norm with random gamma and beta, and its transcription with the same."""
    torch.manual_seed(1)
    norm = build_norm(name, dim, **options).double()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, mean=1.0)
    defaults = {option.name: option.default for option in norm_spec(name).options}
    parameters = {
        PAPER_NAMES.get(key, key): parameter.detach().numpy()
        for key, parameter in norm.named_parameters()
    }
    return norm, REFERENCES[name](dim, **parameters, **{**defaults, **options})


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_forward_gradients_and_statistics(name, options, ragged):
    norm, reference = build_pair(name, options, ragged()[0].size(-1))
    for step in range(STEPS):
        x, mask = ragged(seed=step)
        x = at_times_loud(x, step)
        valid = ~mask.t().reshape(-1)
        g = torch.randn(x.shape, dtype=x.dtype) * valid.view(*x.shape[:2], 1)
        x.requires_grad_()
        norm.zero_grad()
        y = norm(x, padding_mask=mask)
        y.backward(g)

        rows = x.detach().reshape(-1, x.size(-1)).numpy()
        close(y.detach(), reference.forward(rows, valid.numpy()), f"y at step {step}")
        close(x.grad, reference.backward(g.reshape(rows.shape).numpy()), f"dx at step {step}")
        for key, parameter in norm.named_parameters():
            close(parameter.grad, reference.grads[key], f"d{key} at step {step}")
        for key, value in reference.state.items():
            close(getattr(norm, key), value, f"{key} after step {step}")


def close(ours, theirs, what):
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(
        ours.numpy().reshape(theirs.shape), theirs, rtol=TOLERANCE, atol=TOLERANCE, err_msg=what
    )


def test_powernorm_divides_by_the_running_mean_in_inference(ragged):
    norm, _ = build_pair("powernorm", {"layer_scale_groups": 0}, 12)
    x, mask = ragged()
    norm(x, mask)
    norm.eval()
    psi = torch.sqrt(norm.psi2 + norm.eps)
    # Three roundings in float64, fused or not, of terms below 20; where product and bias cancel,
    # what they leave is absolute
    expected = x / psi * norm.weight + norm.bias
    torch.testing.assert_close(norm(x, mask), expected, rtol=1e-13, atol=1e-13)
