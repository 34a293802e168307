"""The passes of norm_plugin/kernels/passes.py as formulas, in float64: slow and plain to see.

Backward passes are autograd's, so that no derivative is written down twice. Shapes as there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from norm_plugin.kernels.passes import RowRule


def row_y(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    alpha: Tensor | None,
    b: Tensor | None,
    rule: RowRule,
) -> Tensor:
    """y, with constants of the gradient detached. x: (N, C)."""
    groups = x.unflatten(1, (rule.groups, -1))
    mean = groups.mean(2, keepdim=True) if rule.center else torch.zeros(())
    mean = mean if rule.through_mean else mean.detach()
    squares = (groups - mean).square()
    if rule.released:
        rstd = 1 / ((squares.sum(2, keepdim=True) / (groups.size(2) - 1)).sqrt() + rule.eps)
    else:
        rstd = 1 / (squares.mean(2, keepdim=True) + rule.eps).sqrt()
    rstd = rstd if rule.through_rstd else rstd.detach()
    z = ((groups - mean) * rstd).flatten(1)
    if rule.phi is not None:
        scale, slope = rule.phi
        z = (scale * (1 - slope * z)).detach() * z
    gain = weight if alpha is None else weight + torch.tanh(x @ b).unsqueeze(1) * alpha
    z = z if gain is None else gain * z
    return z if bias is None else z + bias


def pointwise_y(
    x: Tensor, function: str, slope: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor
) -> Tensor:
    inner = slope * x if shift is None else slope * x + shift
    return weight * getattr(torch, function)(inner) + bias


def rstd_of(x: Tensor, groups: int, eps: float) -> Tensor | None:
    """The shape (N, G), or None without RMS pre-scaling."""
    if groups == 0:
        return None
    return 1 / (x.unflatten(1, (groups, -1)).square().mean(2) + eps).sqrt()


def scaled(x: Tensor, groups: int, eps: float) -> Tensor:
    """u, (N, C)."""
    rstd = rstd_of(x, groups, eps)
    return x if rstd is None else x * rstd.repeat_interleave(x.size(1) // groups, 1)


def du_to_dx(
    dy: Tensor,
    x: Tensor,
    groups: int,
    eps: float,
    valid: Tensor,
    shift: Tensor,
    dy_coef: Tensor,
    constant: Tensor,
    u_coef: Tensor,
) -> Tensor:
    """dx, (N, C), 0 at padding."""
    real = x[valid].requires_grad_()
    u = scaled(real, groups, eps)
    du = dy_coef * dy[valid] + constant + u_coef * (u.detach() - shift)
    dx = torch.zeros_like(x)
    (dx[valid],) = torch.autograd.grad(u, real, du)
    return dx
