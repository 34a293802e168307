"""A norm in inference as a gain and an offset a channel, where it is one."""

from __future__ import annotations

import pytest
import torch

from batches import DIM, new_norm
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.norms.base.inference import CannotFold

PLAIN = {
    "batchnorm": {"layer_scale_groups": 0},
    "powernorm-v": {"layer_scale_groups": 0},
    "powernorm": {"layer_scale_groups": 0},
    "mabn": {},
    "unified": {},
    "regularized-batchnorm": {},
    "repbn": {},
    "none": {},
}
"""The norms that are such a map, with the options that make them one."""
LAYER_SCALED = [name for name, options in PLAIN.items() if options]


def trained(name, ragged, **options):
    """The norm after three batches, whose channels differ in mean and scale; and its x."""
    x, mask = ragged()
    x = x * torch.linspace(0.5, 3, DIM) + torch.linspace(-2, 2, DIM)
    norm = new_norm(name, **options)
    for _ in range(3):
        norm(x, mask)
    return norm.eval(), x


@pytest.mark.parametrize("name", PLAIN)
def test_it_gives_what_the_norm_gives(name, ragged):
    norm, x = trained(name, ragged, **PLAIN[name])
    channels = norm.inference_map()
    assert channels.gain.dtype == channels.offset.dtype == torch.float64
    # float64 rounding of the same few operations in another order
    torch.testing.assert_close(channels.gain * x + channels.offset, norm(x), rtol=1e-12, atol=1e-12)


def test_released_powernorm_is_such_a_map_too(ragged):
    norm, x = trained("powernorm", ragged, variant="released", layer_scale_groups=0)
    channels = norm.inference_map()
    torch.testing.assert_close(channels.gain * x + channels.offset, norm(x), rtol=1e-12, atol=1e-12)


def test_half_precision_is_mapped_in_float64(ragged):
    norm, _ = trained("batchnorm", ragged, layer_scale_groups=0)
    norm.float()
    expected = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    assert torch.equal(norm.inference_map().gain, expected)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("name", LAYER_SCALED)
def test_layer_scale_is_none(name, groups, ragged):
    norm, _ = trained(name, ragged, layer_scale_groups=groups)
    with pytest.raises(CannotFold, match="^its layer-scale divides each position"):
        norm.inference_map()


def test_a_blend_with_layernorm_is_none_until_it_ends(ragged):
    norm, x = trained("repbn", ragged, blend_updates=4)
    with pytest.raises(CannotFold, match="has its share until update 4; this is update 3"):
        norm.inference_map()
    norm.train()(x)
    channels = norm.eval().inference_map()
    torch.testing.assert_close(channels.gain * x + channels.offset, norm(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(NORM_TYPES) - set(PLAIN)))
def test_the_others_are_none(name):
    assert not norm_spec(name).batch_statistics
    with pytest.raises(CannotFold, match="computed from each input anew"):
        new_norm(name).inference_map()
