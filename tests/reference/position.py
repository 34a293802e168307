"""Transcriptions of the norms whose statistics are those of one position."""

from __future__ import annotations

import math

import numpy as np

from reference.base import Reference, transcribes


@transcribes("layernorm-simple")
@transcribes("layernorm")
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
        if self.gamma is not None:
            self.keep_affine_grads(g, self.x_hat)
        return self.through_standardize(g * self.gain())

    def through_standardize(self, g):
        dx = np.zeros_like(g)
        for i, row in enumerate(g):
            mean_g = sum(row) / self.dim
            mean_gx = sum(row * self.x_hat[i]) / self.dim
            dx[i] = (row - mean_g - self.x_hat[i] * mean_gx) / self.sigma[i]
        return dx


@transcribes("detachnorm")
class DetachNorm(LayerNorm):
    """Both statistics are constants in the backward pass."""

    mean_is_constant = True
    std_is_constant = True

    def backward(self, g):
        dx = np.zeros_like(g)
        for i, row in enumerate(g):
            dx[i] = row / self.sigma[i]
            if not self.mean_is_constant:
                dx[i] -= sum(row) / self.dim / self.sigma[i]
            if not self.std_is_constant:
                dx[i] -= self.x_hat[i] * sum(row * self.x_hat[i]) / self.dim / self.sigma[i]
        return dx


@transcribes("detachnorm-mean")
class DetachNormMean(DetachNorm):
    std_is_constant = False


@transcribes("detachnorm-std")
class DetachNormStd(DetachNorm):
    mean_is_constant = False


@transcribes(
    "adanorm",
    {},
    {"scale": 1.0, "k": 0.3},
    {"variant": "released"},
    {"variant": "released", "scale": 1.0, "eps": 1e-2},
    refused=[
        ({"scale": 0}, "scale is 0.0; it must be positive and finite"),
        ({"variant": "published"}, "'published'; choose from paper, released"),
    ],
)
class AdaNorm(LayerNorm):
    def forward(self, x, valid):
        if self.options["variant"] == "released":
            y = self.standardize_as_released(x)
        else:
            y = super().forward(x, valid)
        self.phi = self.options["scale"] * (1 - self.options["k"] * y)
        return self.phi * y

    def standardize_as_released(self, x):
        """(x - mu) / (s + eps) with s^2 = sum (x - mu)^2 / (C - 1)."""
        mu = x.sum(axis=1, keepdims=True) / self.dim
        self.centered = x - mu
        self.s = np.sqrt((self.centered**2).sum(axis=1, keepdims=True) / (self.dim - 1))
        return self.centered / (self.s + self.options["eps"])

    def backward(self, g):
        g = self.phi * g
        if self.options["variant"] == "paper":
            return self.through_standardize(g)
        # y = u / (s + eps) with u = x - mu:  dy = du / (s + eps) - u ds / (s + eps)^2,
        # ds = u du / ((C - 1) s), and both g and u are centered over the channels
        below = self.s + self.options["eps"]
        dx = np.zeros_like(g)
        for i, u in enumerate(self.centered):
            along = sum(g[i] * u) / ((self.dim - 1) * self.s[i] * below[i] ** 2)
            dx[i] = (g[i] - sum(g[i]) / self.dim) / below[i] - along * u
        return dx


@transcribes("rmsnorm", {}, {"gain": "1+w"})
class RMSNorm(Reference):
    def forward(self, x, valid):
        self.rms = np.array([np.sqrt(sum(row**2) / self.dim + self.options["eps"]) for row in x])
        self.x_hat = x / self.rms[:, None]
        self.gain = self.gamma + (self.options.get("gain") == "1+w")
        return self.gain * self.x_hat

    def backward(self, g):
        self.grads = {"weight": (g * self.x_hat).sum(axis=0)}
        return self.through_rms(g * self.gain)

    def through_rms(self, g):
        mean_gx = (g * self.x_hat).sum(axis=1) / self.dim
        return (g - self.x_hat * mean_gx[:, None]) / self.rms[:, None]


@transcribes(
    "seednorm",
    {},
    {"alpha_init": 0.3, "gain_heads": 3},
    refused=[({"gain_heads": 5}, "gain_heads is 5; it must divide the 12 channels")],
)
class SeeDNorm(RMSNorm):
    def forward(self, x, valid):
        super().forward(x, valid)
        self.x, self.width = x, self.dim // self.options["gain_heads"]
        self.tanh = np.zeros_like(x)
        for i, row in enumerate(x):
            for start in range(0, self.dim, self.width):
                head = slice(start, start + self.width)
                self.tanh[i, head] = np.tanh(sum(row[head] * self.options["b"][head]))
        return (self.tanh * self.options["alpha"] + self.gamma) * self.x_hat

    def backward(self, g):
        alpha, b = self.options["alpha"], self.options["b"]
        slope = g * self.x_hat * alpha  # dL/dtanh, of each channel
        db, dx = np.zeros(self.dim), np.zeros_like(g)
        for i in range(len(g)):
            for start in range(0, self.dim, self.width):
                head = slice(start, start + self.width)
                dproduct = sum(slope[i, head]) * (1 - self.tanh[i, start] ** 2)
                db[head] += dproduct * self.x[i, head]
                dx[i, head] = dproduct * b[head]
        self.grads = {
            "weight": (g * self.x_hat).sum(axis=0),
            "alpha": (g * self.x_hat * self.tanh).sum(axis=0),
            "b": db,
        }
        return dx + self.through_rms(g * (self.tanh * alpha + self.gamma))


@transcribes("scalenorm", {}, {"eps": 1e-1})
class ScaleNorm(Reference):
    def forward(self, x, valid):
        squares = [sum(row**2) + self.options["eps"] for row in x]
        self.length = np.sqrt(np.array(squares))[:, None]
        self.unit = x / self.length
        return self.options["g"] * self.unit

    def backward(self, g):
        self.grads = {"g": (g * self.unit).sum()}
        along = (g * self.unit).sum(axis=1, keepdims=True)
        return self.options["g"] * (g - along * self.unit) / self.length


@transcribes(
    "groupnorm",
    {},
    {"groups": 1},
    {"groups": 6, "eps": 1e-2},
    refused=[
        ({"groups": 5}, "groups is 5; it must divide 12 into groups of two"),
        ({"groups": 0}, "groups is 0; it must divide 12"),
        ({"groups": 12}, "groups is 12; it must divide 12 into groups of two"),
    ],
)
class GroupNorm(Reference):
    """LayerNorm without gamma and beta on each group of channels by itself."""

    def forward(self, x, valid):
        parts = np.split(x, self.options["groups"], axis=1)
        self.norms = [LayerNorm(part.shape[1], eps=self.options["eps"]) for part in parts]
        pieces = [norm.forward(part, valid) for norm, part in zip(self.norms, parts)]
        self.x_hat = np.concatenate(pieces, axis=1)
        return self.gamma * self.x_hat + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        pieces = np.split(g * self.gamma, len(self.norms), axis=1)
        back = [norm.through_standardize(piece) for norm, piece in zip(self.norms, pieces)]
        return np.concatenate(back, axis=1)


@transcribes(
    "dyt", refused=[({"alpha_init": 0}, "alpha_init is 0.0; it must be positive and finite")]
)
class DynamicTanh(Reference):
    def forward(self, x, valid):
        self.x, self.bounded = x, np.tanh(self.options["alpha"] * x)
        return self.gamma * self.bounded + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.bounded)
        inner = g * self.gamma * (1 - self.bounded**2)
        self.grads["alpha"] = (inner * self.x).sum()
        return self.options["alpha"] * inner


@transcribes(
    "derf", refused=[({"alpha_init": float("inf")}, "alpha_init is inf; it must be finite")]
)
class DynamicErf(Reference):
    def forward(self, x, valid):
        self.x, self.inner = x, self.options["alpha"] * x + self.options["shift"]
        self.bounded = np.vectorize(math.erf)(self.inner)
        return self.gamma * self.bounded + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.bounded)
        inner = g * self.gamma * 2 / math.sqrt(math.pi) * np.exp(-(self.inner**2))
        self.grads["alpha"] = (inner * self.x).sum()
        self.grads["shift"] = inner.sum()
        return self.options["alpha"] * inner


@transcribes("none")
class Identity(Reference):
    def forward(self, x, valid):
        return x

    def backward(self, g):
        return g
