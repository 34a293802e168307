"""The layers of a model as the equations of the placements see them, for the tests of those."""

from __future__ import annotations

from functools import partial

import torch
from reference.placements import Branch, Stack
from torch.nn import functional

from norm_plugin.models.sites import LAST_MAPS, STOCK_NORMS
from norm_plugin.norms import Norm
from norm_plugin.placements import INPUT, PLACEMENTS, SUM

LAYERS = {"encoder": 3, "decoder": 2}
NARROW = tuple(
    word
    for side, layers in LAYERS.items()
    for option, value in {
        "layers": layers,
        "embed-dim": 16,
        "ffn-embed-dim": 24,
        "attention-heads": 2,
    }.items()
    for word in (f"--{side}-{option}", str(value))
)

CHECKPOINTED = [name for name, cls in PLACEMENTS.items() if cls.streams != 1]
CHECKPOINTED += ["pre", "post", "normformer", "b2t", "mix"]
"""Those that stand for all where a layer is recomputed from its streams: with several, and one."""


def shaken(model):
    """``model`` in float64 and evaluation, with other values for what norms and placements have."""
    generator = torch.Generator().manual_seed(3)
    for key, value in [*model.named_parameters(), *model.named_buffers()]:
        if ("norm" in key or ".placement." in key) and value.is_floating_point():
            value.data += 0.3 * torch.randn(value.shape, generator=generator)
            if "var" in key:
                value.data.abs_()  # a running variance
    return model.double().eval()


def sinusoid(distances, dim):
    """R of each distance, (K, dim): all sines, then all cosines."""
    rates = [10000 ** (-2 * i / dim) for i in range(dim // 2)]
    angles = torch.tensor([[k * rate for rate in rates] for k in distances], dtype=torch.float64)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def linear(module, x):
    """A linear map, without the hooks of its module."""
    return functional.linear(x, module.weight, module.bias)


def layer_norm(norm, x):
    """LayerNorm, without the hooks of its module."""
    return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def heads(attention, norms, masked, y, memory=None):
    """The heads of an attention, side by side, (T, B, C).

    Args:
        norms: those of queries, keys and values, each over what it is wide; None: there is none.
        masked: (B, 1, T, S), True where a query may not look; or what broadcasts to it.
        y, memory: queries (T, B, C), and keys and values (S, B, C) if they are others.
    """
    memory = y if memory is None else memory
    q, k, v = (
        normalized(linear(projection, z), norm).unflatten(-1, (attention.num_heads, -1))
        for projection, z, norm in zip(
            (attention.q_proj, attention.k_proj, attention.v_proj), (y, memory, memory), norms
        )
    )
    scores = torch.einsum("tbhd,sbhd->bhts", q, k) / q.size(-1) ** 0.5
    weights = scores.masked_fill(masked, -torch.inf).softmax(-1)
    return torch.einsum("bhts,sbhd->tbhd", weights, v).flatten(-2)


def normalized(x, norm):
    """x, (T, B, C), each part of it that is as wide as ``norm`` normalized on its own."""
    if norm is None:
        return x
    return torch.cat([layer_norm(norm, part) for part in x.split(norm.dim, dim=-1)], dim=-1)


def head_norms(layer, branch):
    """The norms of the queries, keys and values of an attention, if it has them."""
    return [getattr(layer, f"{branch}_{flag}_norm", None) for flag in ("query", "key", "value")]


def branch_of(layer, name, number, h):
    """Branch ``name`` of a layer, as its equation sees it."""
    slot = INPUT if layer.normalize_before else SUM
    prefix = f"{name}_"
    children = {
        attribute.removeprefix(prefix).removesuffix("_norm"): norm
        for attribute, norm in layer.named_children()
        if attribute.startswith(prefix) and attribute.endswith("_norm")
    } | {slot: getattr(layer, STOCK_NORMS[name])}
    norms = {
        position: partial(layer_norm, norm)
        for position, norm in children.items()
        if isinstance(norm, Norm)
    }
    last = layer.get_submodule(LAST_MAPS[name])
    learned = dict([*layer.placement.named_parameters(), *layer.placement.named_buffers()])
    return Branch(name, h, partial(linear, last), number, learned, norms)


def stack_of(stack, side, mask, memory=None, memory_mask=None):
    """A stack of the model, as its equation sees it; mask and memory_mask are (B, T)."""
    hidden = mask[:, None, None, :]
    if memory is not None:
        length = mask.size(1)
        hidden = hidden | torch.ones(length, length, dtype=torch.bool).triu(1)
    layers = []
    for number, layer in enumerate(stack.layers, start=1):
        h = {"self": partial(heads, layer.self_attn, head_norms(layer, "self"), hidden)}
        if memory is not None:
            seen = memory_mask[:, None, None, :]
            norms = head_norms(layer, "cross")
            h["cross"] = partial(heads, layer.encoder_attn, norms, seen, memory=memory)
        h["ffn"] = lambda y, fc1=layer.fc1: linear(fc1, y).relu()
        layers.append([branch_of(layer, name, number, branch) for name, branch in h.items()])
    final, own = norms_after(stack)
    return Stack(layers, final, side, LAYERS["encoder"], LAYERS["decoder"], own)


def norms_after(stack):
    """The norm after a stack, or what returns its input, and those of the placement's own."""
    final = partial(layer_norm, stack.layer_norm) if stack.layer_norm else (lambda x: x)
    own = {
        attribute: partial(layer_norm, norm)
        for attribute, norm in stack.named_children()
        if attribute.startswith("final_")
    }
    return final, own


def check_gradients(model, logits, by_hand):
    """Logits and gradients are those of the equation; ``model`` is in float64."""
    # another order of sums, through a few layers: far below any real effect
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(logits, by_hand, **close)
    gradients = []
    for y in (logits, by_hand):
        model.zero_grad()
        y.square().sum().backward()
        gradients.append({key: value.grad.clone() for key, value in model.named_parameters()})
    for key, expected in gradients[1].items():
        torch.testing.assert_close(gradients[0][key], expected, **close, msg=key)


def check_decoding(model, batch):
    """Decoding step by step gives what decoding at once gives."""
    tokens = batch["prev_output_tokens"][:2, :5]
    encoder_out = model.encoder(batch["src_tokens"][:2], batch["src_lengths"][:2])
    at_once = model.decoder(tokens, encoder_out=encoder_out)[0]
    state = {}
    for length in range(1, 6):
        logits = model.decoder(tokens[:, :length], encoder_out, incremental_state=state)[0]
        # Step by step fairseq takes the softmax of attention in float32: its weights are off by
        # eps (1.2e-7) times the size of the scores, in four attentions, whose maps and norms
        # multiply it by some tens. A wrong position or mask moves logits by tenths.
        torch.testing.assert_close(logits[:, 0], at_once[:, length - 1], rtol=1e-4, atol=1e-4)
