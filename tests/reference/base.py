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
        own: what the running statistics of inference move towards, by the name of the buffer.
        pulls_padding: padding gets a gradient, as in some released code.
    """

    pulls_padding = False

    def __init__(self, dim, gamma=None, beta=None, **options):
        self.dim, self.gamma, self.beta, self.options = dim, gamma, beta, options
        self.grads, self.state, self.own = {}, {}, {}

    def keep_affine_grads(self, g, x_hat):
        self.grads = {"weight": (g * x_hat).sum(axis=0), "bias": g.sum(axis=0)}


class Entry(NamedTuple):
    """What the tests know about a norm in addition to its declaration.

    Attributes:
        make: builds the transcription from dim, parameters and all options.
        variants: the options to test it with.
        exact: options with which the gradient is exact, though the class calls it approximate.
        refused: options that it refuses for 12 channels, and a pattern of the message.
        roundings: how many times as much rounding a stack of layers gathers with it as with a norm
            that lets nothing of its input by.
    """

    make: Callable[..., Reference]
    variants: tuple[Options, ...]
    exact: tuple[Options, ...]
    refused: tuple[tuple[Options, str], ...]
    roundings: float


ENTRIES: dict[str, Entry] = {}


def transcribes(name, *variants, exact=(), refused=(), roundings=1.0):
    """Decorator: this builds the transcription of norm ``name``; without variants, by defaults."""

    def register(make):
        ENTRIES[name] = Entry(make, variants or ({},), tuple(exact), tuple(refused), roundings)
        return make

    return register
