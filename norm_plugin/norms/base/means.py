"""Means over the real positions of a batch, and the update of their running statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from norm_plugin.norms.base.workers import sum_over_workers


def zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """``x`` with 0 at padding, where no gradient passes. x: (..., C); valid: bool (...) or None."""
    # where, not a product: an infinity at a padded position must not become NaN
    return x if valid is None else torch.where(valid.unsqueeze(-1), x, x.new_zeros(()))


def masked_means(
    xs: Sequence[Tensor], valid: Tensor | None, sync: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Means over the real positions, (1/n) sum_V x, of tensors of one shape.

    Args:
        xs: each (..., C).
        valid: bool (...), True at real positions; None: every position is real.
        sync: let V be the real positions of all workers. One all-reduce serves all means.

    Returns:
        The means, each (C,), and n, (). Without a single real position the means are 0.
    """
    sums = [zero_padding(x, valid).reshape(-1, x.size(-1)).sum(dim=0) for x in xs]
    rows = xs[0].numel() // max(xs[0].size(-1), 1)
    count = xs[0].new_full((), rows) if valid is None else valid.sum().to(xs[0].dtype)
    if sync:
        together = sum_over_workers(torch.cat([*sums, count.unsqueeze(0)]))
        *sums, count = together.split([*(total.size(0) for total in sums), 1])
        count = count.squeeze(0).detach()
    return [total / count.clamp(min=1) for total in sums], count


def finite_or(value: Tensor, instead: Tensor) -> Tensor:
    """``value``, or ``instead`` if any entry of it is NaN or infinite. Both of one shape.

    A running statistic that is NaN once stays NaN. So an overflow of half precision, after which
    a trainer only skips the update, would end the run.
    """
    return torch.where(is_finite(value), value, instead)


def is_finite(value: Tensor) -> Tensor:
    """Whether no entry of ``value`` is NaN or infinite, bool ()."""
    return (0 * value).sum() == 0  # NaN for those two, in half the operations of isfinite().all()


def update_running_average(buffer: Tensor, value: Tensor, weight: float, count: Tensor) -> None:
    """buffer <- (1 - w) buffer + w value, in place.

    The buffer stays as it is if ``count``, the number of real positions, is 0, or if ``value`` is
    not finite.
    """
    value = value.detach().to(buffer.dtype)
    usable = is_finite(value) & (count > 0)
    buffer.copy_(torch.where(usable, buffer.lerp(value, weight), buffer))


RunningUpdate = Callable[[Tensor, Tensor, float, Tensor], None]
"""The arguments and the effect of :func:`update_running_average`."""


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless ``value``, the share of a running form that stays, is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}; it must be in [0, 1)")
