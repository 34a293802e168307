#!/usr/bin/env python3
"""Measure how much a language model learns to read its future, by batch statistics or attention.

    python benchmarks/future_leak.py batchnorm powernorm layernorm
    python benchmarks/future_leak.py tensorized-released tensorized-causal

The text is random letters, 16 of them, so that no model that sees only the past can have a loss
below 4 bits per letter. A tiny model trains on it with a few tokens per batch. A training loss
below 4 bits comes from the tokens that the batch statistics reveal. The other loss is that of
inference, with running statistics. tensorized-MASK is the tensorized Transformer with LayerNorm and
that --tensorized-mask. A model that sees all tokens of its window can learn all targets but the
last one, which leaves 4 / 4 bits. The tables in docs/models.md come from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from measuring.command import plain_parser
from measuring.models import build_model, dictionary_of
from norm_plugin.io.command_line import at_least
from norm_plugin.models.tensorized_lm import CAUSAL, MASK, MODEL, RELEASED
from norm_plugin.norms import NORM_TYPES, norm_spec

LETTERS = 16
TOKENS = 4  # per batch
WARMUP = 100  # updates, for a norm with a warm-up
MEASURED = 200  # batches


TENSORIZED = {f"tensorized-{mask}": mask for mask in (RELEASED, CAUSAL)}


def build(name: str) -> Any:
    """Return a model of 2 layers and 32 channels with norm ``name`` everywhere, or that mask."""
    flags = "--task language_modeling --decoder-layers 2 --decoder-embed-dim 32 "
    flags += f"--decoder-ffn-embed-dim 64 --tokens-per-sample {TOKENS} "
    flags += f"--max-target-positions {TOKENS} "
    if name in TENSORIZED:
        flags += f"--arch {MODEL}_char_preln --rank 16 --{MASK.replace('_', '-')} "
        flags += TENSORIZED[name]
    else:
        flags += "--arch norm_transformer_lm_char_preln --decoder-attention-heads 2 "
        flags += f"--norm-type {name}"
        if norm_spec(name).has_option("warmup_updates"):
            flags += f" --norm-warmup-updates {WARMUP}"
    return build_model(dictionary_of(4 + LETTERS), *flags.split())


def loss(model: Any, generator: torch.Generator) -> torch.Tensor:
    """Return the loss of a new batch of random letters in bits per letter."""
    tokens = torch.randint(4, 4 + LETTERS, (1, TOKENS + 1), generator=generator)
    logits = model(tokens[:, :-1])[0]
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return nats / math.log(2)


def measure(name: str, updates: int) -> tuple[float, float]:
    """Return the losses after training: with the statistics of training, and those of inference."""
    model, generator = build(name), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for update in range(updates):
        model.train()
        model.set_num_updates(update)
        optimizer.zero_grad()
        loss(model, generator).backward()
        optimizer.step()
    losses = []
    with torch.no_grad():
        for training in (True, False):
            model.train(training)
            losses.append(sum(loss(model, generator).item() for _ in range(MEASURED)) / MEASURED)
    return losses[0], losses[1]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command, and print a line for each norm or mask."""
    parser = plain_parser(__doc__)
    parser.add_argument("norms", nargs="+", choices=[*NORM_TYPES, *TENSORIZED], metavar="NORM")
    parser.add_argument("--updates", type=at_least(0), default=3000, metavar="N")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for name in args.norms:
        training, inference = measure(name, args.updates)
        print(f"| `{name}` | {training:.2f} | {inference:.2f} |", flush=True)


if __name__ == "__main__":
    main()
