"""Two residual branches in plain torch, for what compiles a model around its norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from norm_plugin.kernels import set_kernels
from norm_plugin.norms import build_norm

DIM = 12


class Block(nn.Module):
    """x + W norm(x) twice. x: (T, B, C); padding_mask: (B, T).

    The compiler takes its time for every operation. So each branch is one linear map: attention,
    which a norm does not see, would double the time.
    """

    def __init__(self, name: str, **options: object) -> None:
        super().__init__()
        self.norms = nn.ModuleList(build_norm(name, DIM, **options) for _ in range(2))
        self.maps = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.maps):
            x = x + linear(norm(x, padding_mask))
        return x


def block_of(name: str, **options: object) -> Block:
    """The block in float64, with random parameters everywhere."""
    torch.manual_seed(0)
    block = Block(name, **options).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.5)
    set_kernels(block, "auto")
    return block


def batch_of(seed: int, time: int = 5) -> tuple[Tensor, Tensor]:
    """x and its padding mask, of the lengths ``time``, 3 and 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(time, 3, DIM, generator=generator, dtype=torch.float64)
    return x, torch.arange(time) >= torch.tensor([time, 3, 1]).unsqueeze(1)
