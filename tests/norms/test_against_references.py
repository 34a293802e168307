"""Each norm against its slow transcription: forward, every gradient, statistics, 25 steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import CASES, REFERENCES, transcription

from batches import at_times_loud, new_norm
from norm_plugin.norms import NORM_TYPES

STEPS = 25
# Both sides compute in float64 and differ in the order of sums only; 25 steps of statistics
# gather rounding of 1e-16 each to well below this.
TOLERANCE = 1e-10


def test_every_norm_has_a_transcription():
    assert set(NORM_TYPES) == set(REFERENCES)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_forward_gradients_and_statistics(name, options, kernels, ragged):
    norm = new_norm(name, **options)
    reference = transcription(name, norm, **options)
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
        assert set(reference.grads) == {key for key, _ in norm.named_parameters()}
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
    norm = new_norm("powernorm", layer_scale_groups=0)
    x, mask = ragged()
    norm(x, mask)
    norm.eval()
    psi = torch.sqrt(norm.psi2 + norm.eps)
    # Three roundings in float64, fused or not, of terms below 20; where product and bias cancel,
    # what they leave is absolute
    expected = x / psi * norm.weight + norm.bias
    torch.testing.assert_close(norm(x, mask), expected, rtol=1e-13, atol=1e-13)
