"""Transformer-XL (Dai et al. 2019) in numpy and float64, head by head and key by key.

It knows nothing of the package: weights are arrays by the names of the model's state, and every
equation is written out as in section 3 of the paper and in its appendix B, without the shift. Norms
are LayerNorm. Tokens are (B, T); states are (T, B, d).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np


@dataclass
class Settings:
    """Sizes, and what the flags of the same names say; ``placement`` is post or pre."""

    layers: int
    heads: int
    mem_len: int
    placement: str
    clamp_len: int = -1
    same_length: bool = False


def layer_norm(w, name, x, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return w[f"{name}.weight"] * (x - mean) / np.sqrt(variance + eps) + w[f"{name}.bias"]


@functools.cache
def sinusoid(k, d):
    """R_k, (d,): all sines, then all cosines."""
    angles = np.array([k / 10000 ** (2 * i / d) for i in range(d // 2)])
    return np.concatenate([np.sin(angles), np.cos(angles)])


def attention(w, name, y, length, cfg):
    """The attention of the last ``length`` positions of y, (M + T, B, d), to all before them."""
    keys, rows, d = y.shape
    memory, width = keys - length, d // cfg.heads
    out = np.zeros((length, rows, d))
    for b in range(rows):
        for h in range(cfg.heads):
            part = slice(h * width, (h + 1) * width)
            w_q, w_k, w_v, w_r = (w[f"{name}.{m}_proj.weight"][part] for m in "qkvr")
            u, v = w["decoder.content_bias"][h], w["decoder.position_bias"][h]
            for i in range(length):
                q = w_q @ y[memory + i, b]
                scores, values = [], []
                for j in range(memory + i + 1):
                    distance = memory + i - j
                    if cfg.same_length and distance >= cfg.mem_len:
                        continue
                    if cfg.clamp_len > 0:
                        distance = min(distance, cfg.clamp_len)
                    content = (q + u) @ (w_k @ y[j, b])
                    position = (q + v) @ (w_r @ sinusoid(distance, d))
                    scores.append((content + position) / np.sqrt(width))
                    values.append(w_v @ y[j, b])
                weights = np.exp(scores - np.max(scores))
                out[i, b, part] = (weights / weights.sum()) @ np.array(values)
    return out @ w[f"{name}.out_proj.weight"].T


def feed_forward(w, name, y):
    hidden = np.maximum(y @ w[f"{name}.fc1.weight"].T + w[f"{name}.fc1.bias"], 0)
    return hidden @ w[f"{name}.fc2.weight"].T + w[f"{name}.fc2.bias"]


def segment_logits(w, tokens, memory, cfg):
    """Logits, (T, B, words), of one segment, and the memory after it.

    Args:
        memory: by layer, (M, B, d); None: there is none.
    """
    embedding = w["decoder.embed_tokens.weight"]
    d, length = embedding.shape[1], tokens.shape[1]
    x = np.sqrt(d) * embedding[tokens.T]
    kept = []
    for layer in range(cfg.layers):
        name = f"decoder.layers.{layer}"
        before = np.zeros((0, *x.shape[1:])) if memory is None else memory[layer]
        both = np.concatenate([before, x])
        kept.append(both[len(both) - min(cfg.mem_len, len(both)) :])
        if cfg.placement == "pre":
            normalized = layer_norm(w, f"{name}.self_attn_layer_norm", both)
            x = x + attention(w, f"{name}.self_attn", normalized, length, cfg)
            x = x + feed_forward(w, name, layer_norm(w, f"{name}.final_layer_norm", x))
        else:
            x = x + attention(w, f"{name}.self_attn", both, length, cfg)
            x = layer_norm(w, f"{name}.self_attn_layer_norm", x)
            x = layer_norm(w, f"{name}.final_layer_norm", x + feed_forward(w, name, x))
    if "decoder.layer_norm.weight" in w:
        x = layer_norm(w, "decoder.layer_norm", x)
    return x @ embedding.T + w["decoder.output_projection.bias"], kept


def mean_loss(logits, target):
    """The mean negative log likelihood in nats; logits (T, B, words), target (B, T)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_p, target.T[..., None], axis=-1).mean()
