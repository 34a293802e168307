"""Batch statistics over groups of tokens: a smaller batch for a norm than for the update.

The real positions of a batch, sentence by sentence, are cut into groups of N tokens. Each group is
normalized as a batch of its own, one after the other: with its own statistics, and with one update
of the running statistics per group. This corresponds to a run with ``--max-tokens N`` and as many
batches per update (``--update-freq``), which is how the PowerNorm paper varies the batch of the
statistics (Figure 5); here the sentences of a batch stay together, whatever N is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def forward_in_groups(
    forward: Callable[[Tensor, int], Tensor],
    x: Tensor,
    valid: Tensor | None,
    tokens: int,
    at_padding: Tensor,
) -> Tensor:
    """Normalize the real positions of ``x`` in groups, and return the result, (..., C).

    Args:
        forward: normalizes one group, (n, C), given the number of groups.
        x: (..., C), with positions of one sentence next to each other.
        valid: bool (...), True at real positions (at least one); None: all positions are real.
        tokens: N. The batch is split into floor(n / N) groups of about equal size, at least one,
            so a batch of fewer than 2 N tokens is one group.
        at_padding: (C,), the output at padding.
    """
    rows = x.flatten(0, -2) if valid is None else x[valid]
    groups = rows.tensor_split(max(len(rows) // tokens, 1))
    normalized = torch.cat([forward(group, len(groups)) for group in groups])
    if valid is None:
        return normalized.view_as(x)
    y = at_padding.to(x.dtype).expand_as(x).clone()
    y[valid] = normalized
    return y
