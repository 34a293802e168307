"""What every slow transcription has: they are obvious, position by position, in float64 numpy.

They share no code with the package. x, y, g are (N, C): one row a position; valid is (N,).
``forward`` returns y; ``backward`` takes dL/dy and returns dL/dx, leaving the gradients of
parameters in ``grads``; ``state`` holds what must be equal after each step. ``weight`` arrives as
gamma and ``bias`` as beta; any other parameter is found by its name among the options.
"""

from __future__ import annotations


class Reference:
    def __init__(self, dim, gamma=None, beta=None, **options):
        self.dim, self.gamma, self.beta, self.options = dim, gamma, beta, options
        self.grads, self.state = {}, {}

    def keep_affine_grads(self, g, x_hat):
        self.grads = {"weight": (g * x_hat).sum(axis=0), "bias": g.sum(axis=0)}
