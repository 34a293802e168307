"""A pre-norm Transformer block in plain torch, for what compiles a model around its norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from norm_plugin.norms import build_norm

DIM, HEADS = 12, 2


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)). x: (T, B, C); padding_mask: (B, T)."""

    def __init__(self, name: str, **options: object) -> None:
        super().__init__()
        self.attention_norm = build_norm(name, DIM, **options)
        self.ffn_norm = build_norm(name, DIM, **options)
        self.projections = nn.Linear(DIM, 3 * DIM)
        self.output = nn.Linear(DIM, DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x, padding_mask), padding_mask)
        return x + self.ffn(self.ffn_norm(x, padding_mask))

    def attend(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        time, batch, _ = x.shape
        split = self.projections(x).view(time, batch, 3, HEADS, DIM // HEADS)
        query, key, value = split.permute(2, 1, 3, 0, 4)  # (B, heads, T, C / heads)
        seen = ~padding_mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.output(mixed.permute(2, 0, 1, 3).reshape(time, batch, DIM))


def block_of(name: str, **options: object) -> Block:
    """The block in float64, with random parameters everywhere."""
    torch.manual_seed(0)
    block = Block(name, **options).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.5)
    return block


def batch_of(seed: int, time: int = 5) -> tuple[Tensor, Tensor]:
    """x and its padding mask, of the lengths ``time``, 3 and 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(time, 3, DIM, generator=generator, dtype=torch.float64)
    return x, torch.arange(time) >= torch.tensor([time, 3, 1]).unsqueeze(1)
