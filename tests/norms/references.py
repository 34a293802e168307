"""Slow, obvious transcriptions of every norm, position by position, in float64 numpy.

They share no code with the package. x, y, g are (N, C): one row a position; valid is (N,).
``forward`` returns y; ``backward`` takes dL/dy and returns dL/dx, leaving the gradients of
gamma and beta in ``grads``; ``state`` holds what must be equal after each step.
"""

from __future__ import annotations

import numpy as np


class Reference:
    def __init__(self, dim, gamma=None, beta=None, **options):
        self.dim, self.gamma, self.beta, self.options = dim, gamma, beta, options
        self.grads, self.state = {}, {}

    def keep_affine_grads(self, g, x_hat):
        self.grads = {"weight": (g * x_hat).sum(axis=0), "bias": g.sum(axis=0)}


class LayerNorm(Reference):
    def forward(self, x, valid):
        self.x_hat, self.sigma = np.zeros_like(x), np.zeros(len(x))
        for i, row in enumerate(x):
            mu = sum(row) / self.dim
            variance = sum((row - mu) ** 2) / self.dim
            self.sigma[i] = np.sqrt(variance + self.options["eps"])
            self.x_hat[i] = (row - mu) / self.sigma[i]
        return self.gain() * self.x_hat + (0 if self.beta is None else self.beta)

    def gain(self):
        return np.ones(self.dim) if self.gamma is None else self.gamma

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        return self.through_standardize(g * self.gain())

    def through_standardize(self, g):
        dx = np.zeros_like(g)
        for i, row in enumerate(g):
            mean_g = sum(row) / self.dim
            mean_gx = sum(row * self.x_hat[i]) / self.dim
            dx[i] = (row - mean_g - self.x_hat[i] * mean_gx) / self.sigma[i]
        return dx


class AdaNorm(LayerNorm):
    def forward(self, x, valid):
        y = super().forward(x, valid)
        self.phi = self.options["scale"] * (1 - self.options["k"] * y)
        return self.phi * y

    def backward(self, g):
        return self.through_standardize(self.phi * g)


class RMSNorm(Reference):
    def forward(self, x, valid):
        self.rms = np.array([np.sqrt(sum(row**2) / self.dim + self.options["eps"]) for row in x])
        self.x_hat = x / self.rms[:, None]
        return self.gamma * self.x_hat

    def backward(self, g):
        self.grads = {"weight": (g * self.x_hat).sum(axis=0)}
        return self.through_rms(g * self.gamma)

    def through_rms(self, g):
        mean_gx = (g * self.x_hat).sum(axis=1) / self.dim
        return (g - self.x_hat * mean_gx[:, None]) / self.rms[:, None]


class Identity(Reference):
    def forward(self, x, valid):
        return x

    def backward(self, g):
        return g


class LayerScale:
    """x / sqrt(mean x^2 + eps) over each group of channels of each position."""

    def __init__(self, groups, eps):
        self.groups, self.eps = groups, eps

    def forward(self, x):
        if self.groups == 0:
            return x
        self.parts = []
        for part in np.split(x, self.groups, axis=1):
            one = RMSNorm(part.shape[1], gamma=np.ones(part.shape[1]), eps=self.eps)
            self.parts.append((one, one.forward(part, None)))
        return np.concatenate([scaled for _, scaled in self.parts], axis=1)

    def backward(self, g):
        if self.groups == 0:
            return g
        pieces = np.split(g, self.groups, axis=1)
        back = [one.through_rms(piece) for (one, _), piece in zip(self.parts, pieces)]
        return np.concatenate(back, axis=1)


class PowerNorm(Reference):
    """Algorithm 2 after ``warmup_updates`` forwards; before them Definition 1 (PN-V)."""

    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.psi2, self.nu, self.updates = np.ones(dim), np.zeros(dim), 0
        self.scale = LayerScale(self.options["layer_scale_groups"], self.options["eps"])

    def forward(self, x, valid):
        self.valid = valid
        x = self.scale.forward(x)
        psi2_batch = sum(x[i] ** 2 for i in np.flatnonzero(valid)) / valid.sum()
        self.in_warmup = self.updates < self.options["warmup_updates"]
        self.updates += 1
        self.psi = np.sqrt((psi2_batch if self.in_warmup else self.psi2) + self.options["eps"])
        a_f = self.options["alpha_fwd"]
        self.psi2 = a_f * self.psi2 + (1 - a_f) * psi2_batch
        self.x_hat = x / self.psi
        return self.gamma * self.x_hat + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        g = g * self.gamma
        real = np.flatnonzero(self.valid)
        gamma_mean = sum(self.x_hat[i] ** 2 for i in real) / len(real)
        lambda_mean = sum(g[i] * self.x_hat[i] for i in real) / len(real)
        pull = lambda_mean if self.in_warmup else self.nu
        dx = g / self.psi
        for i in real:
            dx[i] = (g[i] - pull * self.x_hat[i]) / self.psi
        step = 1 - self.options["alpha_bwd"]
        self.nu = self.nu * (1 - step * gamma_mean) + step * lambda_mean
        self.state = {"psi2": self.psi2, "nu": self.nu, "num_updates": self.updates}
        return self.scale.backward(dx)


REFERENCES = {
    "layernorm": LayerNorm,
    "layernorm-simple": LayerNorm,
    "adanorm": AdaNorm,
    "rmsnorm": RMSNorm,
    "none": Identity,
    "powernorm": PowerNorm,
}
