"""A norm folds where it is, in inference, a gain and an offset a channel, and only there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import CASES

from batches import DIM, new_norm
from norm_plugin.norms import Norm, norm_spec
from norm_plugin.norms.base.contract import CannotFold


def with_and_without_rms_prescale(cases):
    """Each case, and once more without its RMS pre-scaling, after which no norm folds."""
    for name, options in cases:
        yield name, options
        if norm_spec(name).has_option("layer_scale_groups"):
            yield name, {**options, "layer_scale_groups": 0}


MAPPED = [
    (name, options)
    for name, options in CASES
    if norm_spec(name).cls.inference_map is not Norm.inference_map
]
"""The cases of the norms that say when they are such a map."""
every_case = pytest.mark.parametrize(
    ("name", "options"), list(with_and_without_rms_prescale(MAPPED)), ids=str
)


def trained(name, ragged, **options):
    """The norm after three batches, whose channels differ in mean and scale; and its x."""
    x, mask = ragged()
    x = x * torch.linspace(0.5, 3, DIM) + torch.linspace(-2, 2, DIM)
    norm = new_norm(name, **options)
    for _ in range(3):
        norm(x, mask)
    return norm.eval(), x


def is_channel_map(norm, x):
    """Whether y = gain * x + offset at every position, with the gain of the first two."""
    rows, values = x.reshape(-1, DIM), norm(x).detach().reshape(-1, DIM)
    gain = (values[1] - values[0]) / (rows[1] - rows[0])
    # The gain has the rounding of y (1e-15) over the smallest difference of 12 channels; a
    # statistic of the position, or a bent function, changes y by percents
    return torch.allclose(values, values[0] + gain * (rows - rows[0]), rtol=1e-7, atol=1e-7)


@every_case
def test_a_norm_folds_if_and_only_if_it_is_such_a_map(name, options, ragged):
    norm, x = trained(name, ragged, **options)
    before = {key: value.clone() for key, value in norm.named_buffers()}
    if not is_channel_map(norm, x):
        with pytest.raises(CannotFold):
            norm.inference_map()
        return
    channels = norm.inference_map()
    assert channels.gain.dtype == channels.offset.dtype == torch.float64
    # float64 rounding of the same few operations in another order
    torch.testing.assert_close(channels.gain * x + channels.offset, norm(x), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(value, before[key]) for key, value in norm.named_buffers())


def test_the_cases_have_both_answers(ragged):
    folds = {is_channel_map(*trained(name, ragged, **options)) for name, options in MAPPED}
    assert folds == {True, False}


def test_half_precision_is_mapped_in_float64(ragged):
    norm, _ = trained("batchnorm", ragged, layer_scale_groups=0)
    norm.float()
    expected = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    assert torch.equal(norm.inference_map().gain, expected)


@pytest.mark.parametrize("groups", [1, 4])
def test_the_reason_is_the_rms_prescale(groups, ragged):
    norm, _ = trained("batchnorm", ragged, layer_scale_groups=groups)
    with pytest.raises(CannotFold, match="^its RMS pre-scaling divides each position"):
        norm.inference_map()


def test_the_reason_is_the_position(ragged):
    norm, _ = trained("rmsnorm", ragged)
    with pytest.raises(CannotFold, match="computed from each input, in"):
        norm.inference_map()


def test_a_blend_with_layernorm_folds_when_it_has_ended(ragged):
    norm, x = trained("repbn", ragged, blend_updates=4)
    with pytest.raises(CannotFold, match="contributes until update 4, and this is update 3"):
        norm.inference_map()
    norm.train()(x)
    assert is_channel_map(norm.eval(), x)
    channels = norm.inference_map()
    torch.testing.assert_close(channels.gain * x + channels.offset, norm(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("updates", "share"), [(1, 0.75), (3, 0.25), (9, 0.0)])
def test_in_inference_layernorm_has_its_share_too(updates, share, ragged):
    norm, x = trained("repbn", ragged, blend_updates=4)
    alone = new_norm("repbn").eval()
    alone.load_state_dict({key: norm.state_dict()[key] for key in alone.state_dict()})
    layer_norm = F.layer_norm(x, (DIM,), norm.ln_weight, norm.ln_bias, norm.eps)
    norm.set_num_updates(updates)
    expected = share * layer_norm + (1 - share) * alone(x)
    # float64 rounding of the same few operations in another order
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)
