"""The ways in which public code writes LayerNorm and RMSNorm, and what replace_norms makes of them.

The classes are written from the formulas that the named packages compute.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from norm_plugin.norms import replace_norms

DIM = 16


class NanoGPTLayerNorm(nn.Module):
    """eps is in the code, and the offset may be absent."""

    def __init__(self, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))
        self.bias = nn.Parameter(torch.zeros(DIM)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def nanogpt_without_offset_layer_norm():
    return NanoGPTLayerNorm(bias=False)


class OlmoRMSLayerNorm(nn.Module):
    """Named LayerNorm, computes RMSNorm in float32."""

    def __init__(self):
        super().__init__()
        self.normalized_shape, self.eps = (DIM,), 1e-6
        self.weight = nn.Parameter(torch.ones(DIM))
        self.register_parameter("bias", None)

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class OlmoLayerNorm(nn.Module):
    """LayerNorm without parameters, as OLMo has it."""

    def __init__(self):
        super().__init__()
        self.normalized_shape = (DIM,)
        self.weight = self.bias = None

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, eps=1e-5)


class XTransformersLayerNorm(nn.Module):
    """gamma = 1 + the parameter, and the offset is a buffer of zeros."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(DIM))
        self.register_buffer("beta", torch.zeros(DIM))

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.gamma + 1, self.beta)


class XTransformersRMSNorm(nn.Module):
    """Divides by the vector's length, without eps."""

    def __init__(self):
        super().__init__()
        self.scale, self.g = DIM**0.5, nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g


class RmsNorm(nn.Module):
    """timm's spelling."""

    def __init__(self):
        super().__init__()
        self.normalized_shape, self.eps = (DIM,), 1e-6
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GemmaRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.epsilon, self.weight = 1e-6, nn.Parameter(torch.zeros(DIM))

    def forward(self, x):
        return F.rms_norm(x, (DIM,), 1 + self.weight, self.epsilon)


class BertLayerNorm(nn.LayerNorm):
    def __init__(self):
        super().__init__(DIM, eps=1e-12)


class SaysAnotherEpsLayerNorm(nn.LayerNorm):
    """Stores an eps that it does not use."""

    def __init__(self):
        super().__init__(DIM, eps=1e-12)

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, 1e-3)


class OddEpsRMSNorm(nn.RMSNorm):
    """An eps that no rounding finds."""

    def __init__(self):
        super().__init__(DIM)

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, 1.2345e-5)


CLASSES = {
    NanoGPTLayerNorm: ("layernorm", 1e-5),
    nanogpt_without_offset_layer_norm: ("layernorm", 1e-5),
    OlmoRMSLayerNorm: ("rmsnorm", 1e-6),
    OlmoLayerNorm: ("layernorm", 1e-5),
    XTransformersLayerNorm: ("layernorm", 1e-5),
    RmsNorm: ("rmsnorm", 1e-6),
    GemmaRMSNorm: ("rmsnorm", 1e-6),
    BertLayerNorm: ("layernorm", 1e-12),
    SaysAnotherEpsLayerNorm: ("layernorm", 1e-3),
    OddEpsRMSNorm: ("rmsnorm", pytest.approx(1.2345e-5, rel=1e-4)),
}
every_class = pytest.mark.parametrize("new", CLASSES, ids=lambda new: new.__name__)


def filled(new, dtype=torch.float32):
    """A model with a norm, whose parameters have values of their own."""
    torch.manual_seed(1)
    model = nn.Sequential(new(), nn.Linear(DIM, DIM)).to(dtype)
    for parameter in model[0].parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def inputs(dtype=torch.float32):
    """x (3, 8, C), of several sizes: also where the variance is smaller than eps."""
    torch.manual_seed(2)
    sizes = torch.tensor([1.0, 1e-2, 1e-4])[:, None, None]
    return (sizes * (torch.randn(3, 8, DIM) + 0.5)).to(dtype)


@every_class
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_output_stays_the_same_for_inputs_of_any_size(new, dtype):
    model, x = filled(new, dtype), inputs(dtype)
    name, eps = CLASSES[new]
    before, parameters = model[0](x), {id(parameter) for parameter in model.parameters()}
    (replaced,) = replace_norms(model, name)
    assert replaced.norm.eps == eps and "eps" in replaced.carried
    # GemmaRMSNorm's 1 + weight is rounded to the dtype of the weights
    close = (
        {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    )
    torch.testing.assert_close(model[0](x), before, **close)
    assert parameters <= {id(parameter) for parameter in model.parameters()}


def test_an_eps_that_no_output_shows_must_be_given():
    model, x = filled(XTransformersRMSNorm), inputs()
    with pytest.raises(ValueError, match=r"the eps of 0 \(XTransformersRMSNorm\) .*; give eps="):
        replace_norms(model, "rmsnorm")
    before = model[0](x)
    replace_norms(model, "rmsnorm", eps=1e-14)
    torch.testing.assert_close(model[0](x), before)


class EpsOutsideRMSNorm(nn.RMSNorm):
    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)


def test_an_eps_outside_the_root_must_be_given():
    model, x = nn.Sequential(EpsOutsideRMSNorm(DIM)), inputs()
    with pytest.raises(ValueError, match=r"0 \(EpsOutside.*no eps inside the root; give the eps="):
        replace_norms(model, "rmsnorm")
    before = model(x)
    replace_norms(model, "rmsnorm", eps=0.0)
    torch.testing.assert_close(model(x), before, rtol=0.02, atol=0)  # 1e-6 of 1e-4


class UnbiasedLayerNorm(nn.LayerNorm):
    """The Annotated Transformer's: an unbiased deviation."""

    def forward(self, x):
        y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
        return self.weight * y + self.bias


class OtherNamesLayerNorm(UnbiasedLayerNorm):
    def __init__(self):
        super().__init__(DIM)
        self.a_2 = nn.Parameter(torch.ones(DIM))


class WeightlessRMSNorm(nn.Module):
    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:])


class ChannelsFirstLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class LayerNorm2d(nn.LayerNorm):
    """timm's, whose name does not end in LayerNorm."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class GatedRMSNorm(nn.RMSNorm):
    def forward(self, x, gate=None):
        return super().forward(x if gate is None else x * F.silu(gate))


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (UnbiasedLayerNorm(DIM), "computes neither LayerNorm nor RMSNorm"),
        (OtherNamesLayerNorm(), r"has the parameters a_2\. A gain can be named weight, gamma"),
        (WeightlessRMSNorm(), "has neither a gain of each channel nor a normalized_shape, so its"),
        (ChannelsFirstLayerNorm(DIM), r"cannot normalize an input of shape \(2, 3, 16\), \(batch"),
        (LayerNorm2d(DIM), r"cannot normalize an input of shape"),
        (GatedRMSNorm(DIM), "takes gate besides its input"),
        (nn.LayerNorm((2, DIM)), r"is over the shape \(2, 16\)"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("name", ["layernorm", "dyt"])
def test_what_is_refused_by_its_path(norm, message, name):
    model = nn.Sequential(nn.LayerNorm(DIM), nn.Sequential(norm))
    before = list(model.modules())
    with pytest.raises(ValueError, match=rf"1\.0 \({type(norm).__name__}\) {message}"):
        replace_norms(model, name)
    assert list(model.modules()) == before
    (replaced,) = replace_norms(model, name, keep="1.0")
    assert replaced.path == "0"


def test_on_the_meta_device_it_is_measured_with_other_parameters():
    model = nn.Sequential(nn.LayerNorm(DIM, eps=1e-3), nn.RMSNorm(DIM)).to("meta")
    first, second = replace_norms(model, "rmsnorm")
    assert (first.norm.eps, second.norm.eps) == (1e-3, torch.finfo(torch.float32).eps)
    (fixed,) = replace_norms(nn.Sequential(NanoGPTLayerNorm()).to("meta"), "layernorm")
    assert fixed.norm.eps == pytest.approx(1e-5)  # a constant of its code
