#!/usr/bin/env python3
"""Train nanoGPT's recipe for tinyshakespeare on a CPU in plain torch, to compare its loss.

    python benchmarks/nanogpt_recipe.py input.txt --minutes 15

The recipe (README of https://github.com/karpathy/nanoGPT) has a GPT of 4 layers and 128 channels,
random windows of 64 characters, 12 per batch, and 2,000 updates. With --minutes, there are as many
updates as fit into the time, and the learning rate falls over all of them.

The loss is in nats per character, over the whole validation text in consecutive windows, as with
``fairseq-eval-lm``, not over random windows as nanoGPT estimates it. It is the lowest of the losses
after every 250 updates and after the last one.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measuring.command import plain_parser
from norm_plugin.io.command_line import at_least

LAYERS, DIM, HEADS, CONTEXT, BATCH = 4, 128, 4, 64, 12
UPDATES, WARMUP, EVERY = 2000, 100, 250
PEAK, LOWEST, BETAS, DECAY, CLIP = 1e-3, 1e-4, (0.9, 0.99), 0.1, 1.0
TIMED = 100  # updates that are timed to see how many fit


class GPT(nn.Module):
    """A GPT without biases: learned positions, pre-norm layers with causal attention and GELU, a
    final norm, and the embedding shared with the output.
    """

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, DIM)
        self.positions = nn.Embedding(CONTEXT, DIM)
        layer: Any = {"activation": F.gelu, "dropout": 0.0, "bias": False}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                DIM, HEADS, 4 * DIM, norm_first=True, batch_first=True, **layer
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(DIM, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                into_residual = name.endswith(("out_proj.weight", "linear2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS if into_residual else 1))

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores of the next characters, (B, T, characters), for characters, (B, T)."""
        length = text.shape[1]
        x = self.characters(text) + self.positions.weight[:length]
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            x = layer(x, causal, is_causal=True)
        return F.linear(self.norm(x), self.characters.weight)

    def nats(self, windows: Tensor) -> Tensor:
        """Return the sum of the losses of windows (B, T + 1)."""
        scores = self(windows[:, :-1]).flatten(0, 1)
        return F.cross_entropy(scores, windows[:, 1:].flatten(), reduction="sum")


def read_text(path: Path) -> tuple[Tensor, Tensor, int]:
    """Return the training text, 90 % of it, the validation text, and the number of characters."""
    text = path.read_text(encoding="utf-8")
    number = {character: index for index, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[character] for character in text])
    cut = int(0.9 * len(tokens))
    return tokens[:cut], tokens[cut:], len(number)


def learning_rate(update: int, updates: int) -> float:
    """Return a linear warm-up to the peak, then half a cosine to the lowest value at the end."""
    if update < WARMUP:
        return PEAK * update / WARMUP
    progress = (update - WARMUP) / max(updates - WARMUP, 1)
    return LOWEST + 0.5 * (1 + math.cos(math.pi * progress)) * (PEAK - LOWEST)


@torch.no_grad()
def validation_loss(model: GPT, text: Tensor) -> float:
    """Return the nats per character over a whole text, in consecutive windows."""
    windows = text.unfold(0, CONTEXT + 1, CONTEXT)
    total = sum(model.nats(batch).item() for batch in windows.split(100))
    rest = text[len(windows) * CONTEXT :]
    if len(rest) > 1:
        total += model.nats(rest[None]).item()
    return total / (len(text) - 1)


def train(model: GPT, train_text: Tensor, valid_text: Tensor | None, updates: int) -> float:
    """Train for some updates; return the lowest validation loss, infinite without a text."""
    shrink = [p for p in model.parameters() if p.dim() >= 2]
    keep = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": shrink, "weight_decay": DECAY}, {"params": keep, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=BETAS)
    best = math.inf
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(update, updates)
        starts = torch.randint(len(train_text) - CONTEXT, (BATCH, 1))
        loss = model.nats(train_text[starts + torch.arange(CONTEXT + 1)]) / (BATCH * CONTEXT)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if valid_text is not None and ((update + 1) % EVERY == 0 or update + 1 == updates):
            best = min(best, validation_loss(model, valid_text))
    return best


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command, and print one line."""
    parser = plain_parser(__doc__)
    parser.add_argument("text", type=Path, help="input.txt of tinyshakespeare")
    parser.add_argument("--minutes", type=at_least(1), help="train as many updates as fit")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    train_text, valid_text, characters = read_text(args.text)
    model, updates = GPT(characters), UPDATES
    if args.minutes is not None:
        start = time.perf_counter()
        train(copy.deepcopy(model), train_text, None, TIMED)
        updates = int(args.minutes * 60 / (time.perf_counter() - start) * TIMED)
    start = time.perf_counter()
    loss = train(model, train_text, valid_text, updates)
    minutes = (time.perf_counter() - start) / 60
    print(f"seed {args.seed}: {updates} updates in {minutes:.1f} minutes, loss {loss:.4f}")


if __name__ == "__main__":
    main()
