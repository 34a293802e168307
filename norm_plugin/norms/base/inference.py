"""The form of a norm whose statistics are constant in inference: a gain and offset per channel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class InferenceAffine(NamedTuple):
    """y = gain * x + offset, per channel.

    Attributes:
        gain, offset: (C,), in float64, so that values computed from them are rounded only once.
    """

    gain: Tensor
    offset: Tensor


class CannotFold(ValueError):  # noqa: N818 -- an expected outcome, not an error
    """Raised if a norm cannot be folded into the layer after it; the message is the reason."""
