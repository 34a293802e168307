"""The tensorized Transformer (Ma et al. 2019) in numpy and float64, entry by entry of its tensors.

It knows nothing of the package; see ``transformer_xl.py`` here for what they share. Tokens are
(B, T), and states are (T, B, d).
"""

from __future__ import annotations

import numpy as np

from reference.transformer_xl import feed_forward, layer_norm, sinusoid


def tensor(w, name, y, i, window, masked):
    """T_i, (window, window), of one row of the input y of the attention, (T, d)."""
    q, k, v = (y @ w[f"{name}.{m}_proj.weight"].T for m in "qkv")
    u, v_r = w["decoder.content_bias"][0], w["decoder.position_bias"][0]
    cores = w[f"{name}.core"]
    out = np.zeros((window, window))
    for g in cores:
        for j in range(i + 1 if masked else len(y)):
            r = w[f"{name}.r_proj.weight"] @ sinusoid(window - 1 - j, y.shape[1])
            for m in range(i + 1 if masked else len(y)):
                for h in range(len(g)):
                    pair = (q[i, h] + u[h]) * k[j, h] + (q[i, h] + v_r[h]) * r[h]
                    out[j, m] += g[h] * pair * v[m, h] / len(cores)
    return out


def attention(w, name, y, window, masked):
    rows = [
        [tensor(w, name, y[:, b], i, window, masked).ravel() for b in range(y.shape[1])]
        for i in range(len(y))
    ]
    return np.array(rows) @ w[f"{name}.out_proj.weight"].T


def logits(w, tokens, layers, window, placement, masked):
    """(T, B, words)."""
    embedding = w["decoder.embed_tokens.weight"]
    x = np.sqrt(embedding.shape[1]) * embedding[tokens.T]
    for layer in range(layers):
        name = f"decoder.layers.{layer}"
        attend, first, second = (
            f"{name}.{part}" for part in ("self_attn", "self_attn_layer_norm", "final_layer_norm")
        )
        if placement == "pre":
            x = x + attention(w, attend, layer_norm(w, first, x), window, masked)
            x = x + feed_forward(w, name, layer_norm(w, second, x))
        else:
            x = layer_norm(w, first, x + attention(w, attend, x, window, masked))
            x = layer_norm(w, second, x + feed_forward(w, name, x))
    if "decoder.layer_norm.weight" in w:
        x = layer_norm(w, "decoder.layer_norm", x)
    return x @ embedding.T + w["decoder.output_projection.bias"]
