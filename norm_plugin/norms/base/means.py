"""Means over the real positions of a batch, and the update of running statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from norm_plugin.norms.base.workers import Sync, sum_over_workers


def zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """Set ``x``, (..., C), to 0 at padding and block its gradient. valid: bool (...), or None."""
    # where, not a product: an infinity at a padded position must not become NaN
    return x if valid is None else torch.where(valid.unsqueeze(-1), x, x.new_zeros(()))


def masked_means(
    xs: Sequence[Tensor], valid: Tensor | None, sync: Sync = False
) -> tuple[list[Tensor], Tensor]:
    """Return the means over the real positions, (1/n) sum_V x, of tensors of equal shape.

    Args:
        xs: each (..., C).
        valid: bool (...), True at real positions; None: every position is real.
        sync: let V be the real positions of all workers, or of a group of them, with a single
            all-reduce.

    Returns:
        The means, each (C,), and n, (). Without any real position the means are 0.
    """
    sums = [zero_padding(x, valid).reshape(-1, x.size(-1)).sum(dim=0) for x in xs]
    rows = xs[0].numel() // max(xs[0].size(-1), 1)
    count = xs[0].new_full((), rows) if valid is None else valid.sum().to(xs[0].dtype)
    if sync:
        together = sum_over_workers(torch.cat([*sums, count.unsqueeze(0)]), sync)
        *sums, count = together.split([*(total.size(0) for total in sums), 1])
        count = count.squeeze(0).detach()
    return [total / count.clamp(min=1) for total in sums], count


def finite_or(value: Tensor, instead: Tensor) -> Tensor:
    """Return ``value``, or ``instead`` of the same shape if any entry of ``value`` is not finite.

    A running statistic that is NaN once stays NaN. Without this check, an overflow in half
    precision, after which a trainer only skips the update, would end the run.
    """
    return torch.where(is_finite(value), value, instead)


def is_finite(value: Tensor) -> Tensor:
    """Return whether no entry of ``value`` is NaN or infinite, bool ()."""
    return (0 * value).sum() == 0  # NaN if not; half the operations of isfinite().all()


def update_running_average(buffer: Tensor, value: Tensor, weight: float, count: Tensor) -> None:
    """Update a running statistic, buffer <- (1 - w) buffer + w value, in place.

    The buffer does not change if ``count``, the number of real positions, is 0, or if ``value``
    is not finite.
    """
    value = value.detach().to(buffer.dtype)
    usable = is_finite(value) & (count > 0)
    buffer.copy_(torch.where(usable, buffer.lerp(value, weight), buffer))


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless ``value``, the share of a running statistic to keep, is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}; it must be in [0, 1)")
