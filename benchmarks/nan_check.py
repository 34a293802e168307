#!/usr/bin/env python3
"""What --norm-nan-check costs on a CPU: its share of the time of an update.

OMP_NUM_THREADS=2 python benchmarks/nan_check.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from measuring.models import build_model, dictionary_of
from measuring.timing import quartiles
from norm_plugin.commands.command_line import at_least
from norm_plugin.models.divergence import DivergenceWatch

VOCABULARY = 2000
SENTENCE = 16


def seconds(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: int) -> float:
    """The time of one update on ``tokens`` source and as many target tokens."""
    words = torch.randint(4, VOCABULARY, (tokens // SENTENCE, SENTENCE))
    lengths = torch.full((len(words),), SENTENCE)
    start = time.perf_counter()
    optimizer.zero_grad()
    logits, _ = model(words, lengths, words)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten()).backward()
    optimizer.step()
    return time.perf_counter() - start


class Stopwatch:
    """The time spent in the methods of the check, which on a CPU is all that it costs."""

    def __init__(self) -> None:
        self.spent = 0.0
        for name in ("look", "check"):
            setattr(DivergenceWatch, name, self.timed(getattr(DivergenceWatch, name)))

    def timed(self, method: Callable[..., None]) -> Callable[..., None]:
        def wrapper(*args: Any) -> None:
            start = time.perf_counter()
            method(*args)
            self.spent += time.perf_counter() - start

        return wrapper


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arch", default="norm_transformer_multi30k_tiny", help="default: %(default)s"
    )
    parser.add_argument("--norm-type", default="layernorm", help="default: %(default)s")
    parser.add_argument(
        "--tokens", type=at_least(SENTENCE), default=4096, help="a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--updates", type=at_least(1), default=50, help="timed (default: %(default)s)"
    )
    args = parser.parse_args()
    stopwatch = Stopwatch()  # before the model is built, whose hooks it times
    flags = ["--arch", args.arch, "--norm-type", args.norm_type, "--norm-placement", "pre"]
    model = build_model(dictionary_of(VOCABULARY), *flags, "--share-all-embeddings")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    shares = []
    for update in range(args.updates + 2):
        stopwatch.spent = 0.0
        elapsed = seconds(model, optimizer, args.tokens)
        if update >= 2:  # the first ones warm up
            shares.append(100 * stopwatch.spent / (elapsed - stopwatch.spent))
    low, middle, high = quartiles(shares)
    print(
        f"{args.arch}, {args.norm_type}, {args.tokens} tokens: the check adds {middle:.2f} % to an "
        f"update ({low:.2f} to {high:.2f} %, quartiles of {args.updates})"
    )


if __name__ == "__main__":
    main()
