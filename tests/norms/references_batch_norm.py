"""Transcriptions of BatchNorm and of the norms that change it."""

from __future__ import annotations

import numpy as np

from references_base import Reference
from references_batch_parts import LayerScale, mean_over
from references_position import LayerNorm


class BatchNorm(Reference):
    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.running_mean, self.running_var = np.zeros(dim), np.ones(dim)
        self.scale = LayerScale(self.options.get("layer_scale_groups", 0), self.options["eps"])

    def forward(self, x, valid):
        self.real = np.flatnonzero(valid)
        x = self.scale.forward(x)
        self.mu = mean_over(self.real, x)
        self.variance = mean_over(self.real, (x - self.mu) ** 2)
        self.share = 1.0
        if self.options.get("variant") == "released":
            self.share = len(self.real) / len(x)
        self.variance = self.variance * self.share
        m = self.options["momentum"]
        self.running_mean = (1 - m) * self.running_mean + m * self.mu
        self.running_var = (1 - m) * self.running_var + m * self.variance
        self.sigma = np.sqrt(self.variance + self.options["eps"])
        self.x_hat = np.zeros_like(x)
        for i in self.real:
            self.x_hat[i] = (x[i] - self.mu) / self.sigma
        return self.gamma * self.x_hat + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        self.state = {
            "running_mean": self.running_mean,
            "running_var": self.running_var,
        }
        return self.scale.backward(self.through_batch(g * self.gamma))

    def through_batch(self, g):
        mean_g, mean_gx = mean_over(self.real, g), mean_over(self.real, g * self.x_hat)
        dx = np.zeros_like(g)
        for i in self.real:
            dx[i] = (g[i] - mean_g - self.share * self.x_hat[i] * mean_gx) / self.sigma
        return dx


class RegularizedBatchNorm(BatchNorm):
    """BatchNorm, with the derivative of the penalty by hand."""

    def forward(self, x, valid):
        self.x, eps = x, self.options["eps"]
        seen_mean, seen_sigma = self.running_mean, np.sqrt(self.running_var + eps)
        y = super().forward(x, valid)
        self.off_mean, self.off_sigma = self.mu - seen_mean, self.sigma - seen_sigma
        return y

    def backward(self, g):
        dx, n = super().backward(g), len(self.real)
        weight = n if self.options["loss_reduction"] == "sum" else 1
        for i in self.real:
            # d mu / dx_i = 1 / n,  d sigma / dx_i = (x_i - mu) / (n sigma)
            d_mu, d_sigma = 1 / n, (self.x[i] - self.mu) / (n * self.sigma)
            dx[i] += weight * self.options["lambda_mean"] * 2 * self.off_mean * d_mu
            dx[i] += weight * self.options["lambda_std"] * 2 * self.off_sigma * d_sigma
        return dx


class RepBatchNorm(BatchNorm):
    """lambda LN(x) + (1 - lambda) (BN(x) + eta x)."""

    updates = 0

    def forward(self, x, valid):
        total = self.options["blend_updates"]
        self.blend = max(0, 1 - self.updates / total) if total else 0
        self.updates += 1
        self.x = x * valid[:, None]
        y = super().forward(x, valid) + self.options["eta"] * self.x
        if not total:
            return y
        ln_gain = {"gamma": self.options["ln_weight"], "beta": self.options["ln_bias"]}
        self.layer_norm = LayerNorm(self.dim, eps=self.options["eps"], **ln_gain)
        return self.blend * self.layer_norm.forward(self.x, valid) + (1 - self.blend) * y

    def backward(self, g):
        rep = (1 - self.blend) * g
        dx = super().backward(rep) + self.options["eta"] * rep
        self.grads["eta"] = (rep * self.x).sum()
        if self.options["blend_updates"]:
            dx += self.layer_norm.backward(self.blend * g)
            self.grads["ln_weight"] = self.layer_norm.grads["weight"]
            self.grads["ln_bias"] = self.layer_norm.grads["bias"]
        return dx


BATCH_NORM_REFERENCES = {
    "batchnorm": BatchNorm,
    "regularized-batchnorm": RegularizedBatchNorm,
    "repbn": RepBatchNorm,
}

BATCH_NORM_VARIANTS = {
    "batchnorm": [
        {},
        {"layer_scale_groups": 0, "momentum": 0.5},
        {"variant": "released", "layer_scale_groups": 4},
    ],
    "regularized-batchnorm": [
        {},
        {"lambda_mean": 60.0, "lambda_std": 0.0, "momentum": 0.5},
        {"lambda_std": 3.0, "loss_reduction": "mean"},
    ],
    "repbn": [{}, {"blend_updates": 10, "momentum": 0.5}],
}
