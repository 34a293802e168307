"""Transcriptions of BatchNorm and of the norms that change it."""

from __future__ import annotations

import numpy as np

from reference.base import Reference, transcribes
from reference.batch_parts import RMSPrescale, mean_over
from reference.position import LayerNorm


@transcribes(
    "batchnorm",
    {},
    {"layer_scale_groups": 0, "momentum": 0.5},
    {"variant": "released", "layer_scale_groups": 4},
    refused=[
        ({"momentum": 0}, r"momentum is 0.0; it must be in \(0, 1\]"),
        ({"layer_scale_groups": 5}, "layer_scale_groups is 5; .* divide 12"),
        ({"sync": "yes"}, "sync is 'yes'; choose from on, off"),
    ],
)
class BatchNorm(Reference):
    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.running_mean, self.running_var = np.zeros(dim), np.ones(dim)
        self.scale = RMSPrescale(self.options.get("layer_scale_groups", 0), self.options["eps"])
        self.averages_padding = self.options.get("variant") == "released"

    def forward(self, x, valid):
        self.real = np.flatnonzero(valid)
        x = self.scale.forward(x)
        self.mu = mean_over(self.real, x)
        self.variance = mean_over(self.real, (x - self.mu) ** 2)
        self.share = 1.0
        if self.averages_padding:
            self.share = len(self.real) / len(x)
        self.variance = self.variance * self.share
        m = self.options["momentum"]
        self.running_mean = (1 - m) * self.running_mean + m * self.mu
        running_value = self.variance
        if self.averages_padding:
            running_value = running_value * len(x) / (len(x) - 1)
        self.running_var = (1 - m) * self.running_var + m * running_value
        self.sigma = np.sqrt(self.variance + self.options["eps"])
        self.x_hat = np.zeros_like(x)
        for i in self.real:
            self.x_hat[i] = (x[i] - self.mu) / self.sigma
        return self.gamma * self.x_hat + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        self.state = {"running_mean": self.running_mean, "running_var": self.running_var}
        return self.scale.backward(self.through_batch(g * self.gamma))

    def through_batch(self, g):
        mean_g, mean_gx = mean_over(self.real, g), mean_over(self.real, g * self.x_hat)
        dx = np.zeros_like(g)
        for i in self.real:
            dx[i] = (g[i] - mean_g - self.share * self.x_hat[i] * mean_gx) / self.sigma
        return dx


@transcribes(
    "regularized-batchnorm",
    {},
    {"lambda_mean": 60.0, "lambda_std": 0.0, "momentum": 0.5},
    {"loss": "sum"},
    {"lambda_mean": 3.0, "lambda_std": 2.0, "penalty_per": "token"},
    {"lambda_std": 3.0, "distance": "deviations"},
    refused=[({"lambda_std": -1}, "lambda_std is -1.0; it must be 0 or more")],
)
class RegularizedBatchNorm(BatchNorm):
    """BatchNorm, with the derivative of the penalty by hand."""

    def forward(self, x, valid):
        self.x, eps = x, self.options["eps"]
        seen_mean, seen_sigma = self.running_mean, np.sqrt(self.running_var + eps)
        y = super().forward(x, valid)
        if self.options["distance"] == "variances":
            self.off_mean = self.mu - self.running_mean
            self.off_var = self.variance - self.running_var
        else:
            self.off_mean, self.off_sigma = self.mu - seen_mean, self.sigma - seen_sigma
        return y

    def backward(self, g):
        dx, n = super().backward(g), len(self.real)
        weight = n if self.options["penalty_per"] == "token" else 1
        weight /= 1 if self.options["loss"] == "sum" else n
        for i in self.real:
            # d mu / dx_i = 1 / n,  d sigma^2 / dx_i = 2 (x_i - mu) / n
            d_mu, d_var = 1 / n, 2 * (self.x[i] - self.mu) / n
            dx[i] += weight * self.options["lambda_mean"] * 2 * self.off_mean * d_mu
            if self.options["distance"] == "variances":
                of_var = np.sign(self.off_var)
            else:  # d sigma / d sigma^2 = 1 / (2 sigma)
                of_var = 2 * self.off_sigma / (2 * self.sigma)
            dx[i] += weight * self.options["lambda_std"] * of_var * d_var
        return dx


@transcribes(
    "repbn",
    {},
    {"blend_updates": 10, "momentum": 0.5},
    refused=[({"blend_updates": -1}, "blend_updates is -1; it must be 0 or more")],
)
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
