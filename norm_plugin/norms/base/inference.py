"""A norm whose statistics are constants in inference: a gain and an offset for each channel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class InferenceAffine(NamedTuple):
    """y = gain * x + offset, channel by channel.

    Attributes:
        gain, offset: (C,), float64, so that whatever is computed from them is rounded once.
    """

    gain: Tensor
    offset: Tensor


class CannotFold(ValueError):  # noqa: N818 -- an answer, not an error
    """A norm cannot be folded into the layer after it; the message is the reason."""
