"""What every slow transcription has: they are obvious, position by position, in float64 numpy.

They share no code with the package. x, y, g are (N, C): one row per position; valid is (N,).
``forward`` returns y; ``backward`` takes dL/dy and returns dL/dx, leaving the gradients of
parameters in ``grads``; ``state`` holds what must be equal after each step. ``weight`` arrives as
gamma and ``bias`` as beta; any other parameter is found by its name among the options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Options = dict[str, Any]


class Reference:
    """A transcription.

    Attributes:
        pulls_padding: padding gets a gradient, as in some released code.
    """

    pulls_padding = False

    def __init__(self, dim, gamma=None, beta=None, **options):
        self.dim, self.gamma, self.beta, self.options = dim, gamma, beta, options
        self.grads, self.state = {}, {}

    def keep_affine_grads(self, g, x_hat):
        self.grads = {"weight": (g * x_hat).sum(axis=0), "bias": g.sum(axis=0)}


class Entry(NamedTuple):
    """What the tests know about a norm in addition to its declaration.

    Attributes:
        make: builds the transcription from dim, parameters and all options.
        variants: the options to test it with.
        refused: options that it refuses for 12 channels, and a pattern of the message.
    """

    make: Callable[..., Reference]
    variants: tuple[Options, ...]
    refused: tuple[tuple[Options, str], ...]


ENTRIES: dict[str, Entry] = {}


def transcribes(name, *variants, refused=()):
    """Decorator: this builds the transcription of norm ``name``; without variants, by defaults."""

    def register(make):
        ENTRIES[name] = Entry(make, variants or ({},), tuple(refused))
        return make

    return register
