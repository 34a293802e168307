"""Norms over the channels of one position, in one pass forward and one backward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from norm_plugin.kernels.fused.function import Gradients, Passes, fused_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule
from norm_plugin.norms.ada_norm import AdaNorm, ReleasedAdaNorm
from norm_plugin.norms.detach_norm import DetachNorm, DetachNormMean, DetachNormStd
from norm_plugin.norms.group_norm import GroupNorm
from norm_plugin.norms.layer_norm import LayerNormSimple
from norm_plugin.norms.rms_norm import RMSNorm
from norm_plugin.norms.scale_norm import ScaleNorm
from norm_plugin.norms.seed_norm import SeeDNorm


class RowNorm(Passes):
    """Compute y of a :class:`RowRule`; the backward pass standardizes the saved input again.

    The parameters are weight and bias, (C,) or None, and alpha and b, (C,), of some norms; a bias
    only with a mean, for which alone backends sum its gradient.
    """

    def __init__(self, ops: Ops, rule: RowRule) -> None:
        self.ops, self.rule = ops, rule

    def forward(
        self, x: Tensor, weight: Any, bias: Any, alpha: Any = None, b: Any = None
    ) -> Tensor:
        y, self.mean, self.rstd = self.ops.row_forward(x, weight, bias, alpha, b, self.rule)
        return y

    def backward(
        self, dy: Tensor, x: Tensor, weight: Any, bias: Any, alpha: Any = None, b: Any = None
    ) -> Gradients:
        gradients: Gradients = self.ops.row_backward(
            dy, x, self.mean, self.rstd, weight, alpha, b, self.rule
        )
        return gradients


@fuses(LayerNormSimple)
def layer_norm_simple(norm: LayerNormSimple, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return (x - mu) / sigma. ``layernorm`` itself uses torch's own kernel."""
    return fused_norm(RowNorm(ops, RowRule(norm.eps)), x, None, None)


@fuses(DetachNorm, DetachNormMean, DetachNormStd)
def detach_norm(norm: DetachNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return (x - mu) / sigma."""
    rule = RowRule(norm.eps, through_mean=not norm.detach_mean, through_rstd=not norm.detach_std)
    return fused_norm(RowNorm(ops, rule), x, None, None)


@fuses(RMSNorm)
def rms_norm(norm: RMSNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * x / rms."""
    gain = norm.gain() if norm.weight_offset else norm.weight
    return fused_norm(RowNorm(ops, RowRule(norm.eps, center=False)), x, gain, None)


@fuses(SeeDNorm)
def seed_norm(norm: SeeDNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor | None:
    """Return (tanh(x . b) alpha + gamma) * x / rms; None with several heads."""
    if norm.gain_heads > 1:
        return None
    rule = RowRule(norm.eps, center=False)
    return fused_norm(RowNorm(ops, rule), x, norm.weight, None, norm.alpha, norm.b)


@fuses(ScaleNorm)
def scale_norm(norm: ScaleNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return g x / sqrt(sum x^2 + eps) = (g / sqrt(C)) x / sqrt(mean x^2 + eps / C)."""
    rule = RowRule(norm.eps / norm.dim, center=False, one_gain=True)
    return fused_norm(RowNorm(ops, rule), x, norm.g, None)


@fuses(GroupNorm)
def group_norm(norm: GroupNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * (x - mu_i) / sigma_i + beta."""
    rule = RowRule(norm.eps, groups=norm.groups)
    return fused_norm(RowNorm(ops, rule), x, norm.weight, norm.bias)


@fuses(AdaNorm, ReleasedAdaNorm)
def ada_norm(norm: AdaNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return sg[C (1 - k z)] z."""
    rule = RowRule(norm.eps, released=isinstance(norm, ReleasedAdaNorm), phi=(norm.scale, norm.k))
    return fused_norm(RowNorm(ops, rule), x, None, None)
