"""Transcriptions of the norms with a quadratic mean over the positions of a batch.

Those with a mean and a variance are in ``batch_norm.py``.
"""

from __future__ import annotations

import numpy as np

from reference.base import Reference, transcribes
from reference.batch_parts import RMSPrescale, geometric_mean, mean_over


def divided(real, x, root):
    """x over the root of each channel, 0 at padding."""
    y = np.zeros_like(x)
    for i in real:
        y[i] = x[i] / root
    return y


def through_root(real, g, mean_gz, z, root):
    """dL/dx of z = x / root, with that mean of g z over the positions."""
    dx = np.zeros_like(g)
    for i in real:
        dx[i] = (g[i] - mean_gz * z[i]) / root
    return dx


class PowerNorm(Reference):
    """Algorithm 2 after ``warmup_updates`` forwards; before them Definition 1 (PN-V)."""

    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.psi2, self.nu, self.updates = np.ones(dim), np.zeros(dim), 0
        self.warmup = self.options.get("warmup_updates", np.inf)
        self.scale = RMSPrescale(self.options["layer_scale_groups"], self.options["eps"])

    def forward(self, x, valid):
        self.real = np.flatnonzero(valid)
        x = self.scale.forward(x)
        psi2_batch = mean_over(self.real, x**2)
        self.in_warmup = self.updates < self.warmup
        self.updates += 1
        self.psi = np.sqrt((psi2_batch if self.in_warmup else self.psi2) + self.options["eps"])
        a_f = self.options["alpha_fwd"]
        self.psi2 = a_f * self.psi2 + (1 - a_f) * psi2_batch
        self.x_hat = divided(self.real, x, self.psi)
        return self.gamma * self.x_hat + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        g = g * self.gamma
        gamma_mean = mean_over(self.real, self.x_hat**2)
        lambda_mean = mean_over(self.real, g * self.x_hat)
        mean_gx = lambda_mean if self.in_warmup else self.nu
        dx = through_root(self.real, g, mean_gx, self.x_hat, self.psi)
        step = 1 - self.options.get("alpha_bwd", 1.0)
        self.nu = self.nu * (1 - step * gamma_mean) + step * lambda_mean
        self.state = {"psi2": self.psi2, "nu": self.nu, "num_updates": self.updates}
        return self.scale.backward(dx)


@transcribes(
    "powernorm-v",
    {},
    {"layer_scale_groups": 0, "alpha_fwd": 0.5},
    {"layer_scale_groups": 4},
    refused=[({"alpha_fwd": 1}, r"alpha_fwd is 1.0; it must be in \[0, 1\)")],
)
class PowerNormV(PowerNorm):
    """Definition 1, which is Algorithm 2 in a warm-up without end."""

    def backward(self, g):
        dx = super().backward(g)
        self.state = {"psi2": self.psi2}
        return dx


class ReleasedPowerNorm(Reference):
    """The released code, with m = nu / (1 - a_b) as it keeps it."""

    pulls_padding = True

    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.psi2, self.m, self.t = np.ones(dim), np.zeros(dim), 0
        self.scale = RMSPrescale(self.options["layer_scale_groups"], self.options["eps"])

    def forward(self, x, valid):
        self.t += 1
        x = self.scale.forward(x)
        batch = mean_over(np.flatnonzero(valid), x**2)
        eps, warmup, a_f = (self.options[k] for k in ("eps", "warmup_updates", "alpha_fwd"))
        self.psi_batch = np.sqrt(batch + eps)
        self.x_hat = x / (self.psi_batch if self.t <= warmup else np.sqrt(self.psi2 + eps))
        if self.t < warmup:
            self.psi2 = ((self.t - 1) * self.psi2 + batch) / self.t
        self.psi2 = a_f * self.psi2 + (1 - a_f) * batch
        return self.gamma * self.x_hat + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        step = 1 - self.options["alpha_bwd"]
        pulled = g * self.gamma - step * self.m * self.x_hat
        self.m = self.m + sum(pulled[i] * self.x_hat[i] for i in range(len(g))) / len(g)
        self.state = {"psi2": self.psi2, "nu": step * self.m, "num_updates": self.t}
        return self.scale.backward(pulled / self.psi_batch)


@transcribes(
    "powernorm",
    {"warmup_updates": 10},
    {"layer_scale_groups": 0, "alpha_fwd": 0.99, "alpha_bwd": 0.5},
    {"layer_scale_groups": 4, "warmup_updates": 1},
    {"variant": "released", "layer_scale_groups": 4, "warmup_updates": 10},
    {"variant": "released", "layer_scale_groups": 0, "alpha_fwd": 0.99, "alpha_bwd": 0.5},
    refused=[
        ({"alpha_fwd": 1.0}, r"alpha_fwd is 1.0; it must be in \[0, 1\)"),
        ({"alpha_bwd": -0.1}, "alpha_bwd is -0.1"),
        ({"layer_scale_groups": 5}, "layer_scale_groups is 5; .*0 or divide 12"),
        ({"warmup_updates": -1}, "warmup_updates is -1; it must be 0 or more"),
        ({"warmup_updates": 1.5}, "warmup_updates is 1.5; it must be of type int"),
        ({"warmup_updates": True}, "warmup_updates is True; it must be of type int"),
        ({"variant": "old"}, "variant is 'old'; choose from paper, released"),
    ],
)
def power_norm(dim, variant, **kwargs):
    return (ReleasedPowerNorm if variant == "released" else PowerNorm)(dim, **kwargs)


def windows(size, **rows_of):
    """Each window as (M, C), the newest row last and 0 where it is not filled, and its count."""
    state = {}
    for name, rows in rows_of.items():
        empty = [np.zeros_like(rows[0])] * (size - len(rows))
        state.update({name: np.array([*empty, *rows]), f"{name}_filled": len(rows)})
    return state


@transcribes(
    "unified",
    {},
    {"window": 6, "warmup_updates": 3, "outlier_skip": "on"},
    {"window": 2, "alpha_fwd": 0.5, "alpha_bwd": 0.99, "outlier_skip": "on"},
    refused=[
        ({"window": 0}, "window is 0; it must be 1 or more"),
        ({"alpha_bwd": -1}, "alpha_bwd is -1.0"),
    ],
)
class Unified(Reference):
    """Geometric mean of the window forward, averaged averages backward."""

    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.squares, self.gs = [], []
        self.running, self.psi, self.updates = np.ones(dim), np.zeros(dim), 0

    def forward(self, x, valid):
        size = self.options["window"]
        self.real = np.flatnonzero(valid)
        square = mean_over(self.real, x**2)
        in_warmup = self.updates < self.options["warmup_updates"]
        self.updates += 1
        before, self.squares = self.squares, [*self.squares, square][-size:]
        self.outlier = False
        if self.options["outlier_skip"] == "on" and not in_warmup and len(before) == size:
            gap = sum(self.squares) / size - geometric_mean(self.squares)
            roots = np.sqrt(np.array(before))
            variance = ((roots - roots.mean()) ** 2).sum() / (roots.size - 1)
            self.outlier = bool((gap > size * variance).any())
        self.by_batch = in_warmup or self.outlier
        s2 = square if self.by_batch else geometric_mean(self.squares)
        if self.outlier:
            self.squares[-1] = self.running
        a_f = self.options["alpha_fwd"]
        self.running = a_f * self.running + (1 - a_f) * s2
        self.root = np.sqrt(s2 + self.options["eps"])
        self.z = divided(self.real, x, self.root)
        return self.gamma * self.z + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.z)
        g = g * self.gamma
        size, a_b = self.options["window"], self.options["alpha_bwd"]
        g_mean = mean_over(self.real, g * self.z)
        self.gs = [*self.gs, self.psi if self.outlier else g_mean][-size:]
        moved = g_mean if self.by_batch else sum(self.gs) / len(self.gs)
        self.psi = a_b * self.psi + (1 - a_b) * moved
        mean_gz = g_mean if self.by_batch else self.psi
        self.state = {"running_square": self.running, "psi": self.psi}
        self.state.update(windows(size, squares=self.squares, gradients=self.gs))
        return through_root(self.real, g, mean_gz, self.z, self.root)


@transcribes(
    "mabn",
    {},
    {"window": 3, "warmup_updates": 6},
    {"window": 1, "renorm_limit": 1.1},
    refused=[({"renorm_limit": 0.5}, "renorm_limit is 0.5; it must be 1 or more")],
)
class MovingAverage(Reference):
    """Arithmetic means of both windows, and the ratio r as a constant."""

    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.squares, self.gs, self.running, self.updates = [], [], np.ones(dim), 0

    def forward(self, x, valid):
        eps, size = self.options["eps"], self.options["window"]
        self.real = np.flatnonzero(valid)
        square = mean_over(self.real, x**2)
        self.squares = [*self.squares, square][-size:]
        self.in_warmup = self.updates < self.options["warmup_updates"]
        self.updates += 1
        s2 = square if self.in_warmup else sum(self.squares) / len(self.squares)
        self.root, self.r = np.sqrt(s2 + eps), np.ones(self.dim)
        if not self.in_warmup:
            limit = self.options["renorm_limit"]
            self.r = np.clip(self.root / np.sqrt(self.running + eps), 1 / limit, limit)
        a_f = self.options["alpha_fwd"]
        self.running = a_f * self.running + (1 - a_f) * s2
        self.z = divided(self.real, x, self.root)
        return self.gamma * self.r * self.z + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.r * self.z)
        g = self.r * g * self.gamma
        g_mean = mean_over(self.real, g * self.z)
        self.gs = [*self.gs, g_mean][-self.options["window"] :]
        mean_gz = g_mean if self.in_warmup else sum(self.gs) / len(self.gs)
        self.state = {"running_square": self.running}
        size = self.options["window"]
        self.state.update(windows(size, squares=self.squares, gradients=self.gs))
        return through_root(self.real, g, mean_gz, self.z, self.root)
