#!/usr/bin/env python3
"""Measure what --norm-nan-check costs on a CPU, as a share of the time of an update.

OMP_NUM_THREADS=2 python benchmarks/nan_check.py
"""

from __future__ import annotations

from typing import Any

import torch

from measuring.command import plain_parser
from measuring.models import build_model, dictionary_of
from measuring.timing import on_cpu, quartiles
from norm_plugin.io.command_line import at_least
from norm_plugin.models.divergence import DivergenceWatch

VOCABULARY = 2000
SENTENCE = 16
WARMUP = 2


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: int) -> None:
    """Make one update on ``tokens`` source and as many target tokens."""
    batch = torch.randint(4, VOCABULARY, (tokens // SENTENCE, SENTENCE))
    optimizer.zero_grad()
    logits, _ = model(batch, torch.full((len(batch),), SENTENCE), batch)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.flatten()).backward()
    optimizer.step()


def stopwatch() -> list[float]:
    """Return a list that gets the milliseconds of each call of the check, its cost on a CPU."""
    spent: list[float] = []

    def timed(method: Any) -> Any:
        return lambda *args: spent.append(on_cpu(lambda: method(*args)))

    for name in ("look", "check"):
        setattr(DivergenceWatch, name, timed(getattr(DivergenceWatch, name)))
    return spent


def main() -> None:
    """Run the command."""
    parser = plain_parser(__doc__)
    add, shown = parser.add_argument, "default: %(default)s"
    add("--arch", default="norm_transformer_multi30k_tiny", help=shown)
    add("--norm-type", default="layernorm", help=shown)
    add("--tokens", type=at_least(SENTENCE), default=4096, help=f"tokens per batch ({shown})")
    add("--updates", type=at_least(1), default=50, help=f"timed ({shown})")
    args = parser.parse_args()
    spent = stopwatch()  # before the model is built, whose hooks it times
    flags = ["--arch", args.arch, "--norm-type", args.norm_type, "--norm-placement", "pre"]
    model = build_model(dictionary_of(VOCABULARY), *flags, "--share-all-embeddings")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    shares = []
    for _ in range(WARMUP + args.updates):
        spent.clear()
        elapsed = on_cpu(lambda: update(model, optimizer, args.tokens))
        shares.append(100 * sum(spent) / (elapsed - sum(spent)))
    low, middle, high = quartiles(shares[WARMUP:])
    print(
        f"{args.arch}, {args.norm_type}, {args.tokens} tokens: the check adds {middle:.2f} % to an "
        f"update ({low:.2f} to {high:.2f} %, quartiles of {args.updates})"
    )


if __name__ == "__main__":
    main()
