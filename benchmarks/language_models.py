#!/usr/bin/env python3
"""Measure what an update of Transformer-XL costs on a CPU, compared with the plain decoder.

    python benchmarks/language_models.py

Both have 6 post-norm layers of 128 channels with LayerNorm, and read random letters in segments of
64; Transformer-XL remembers the previous segment. The models take turns, one update each, and a
ratio is that of the two updates of one turn; its quartiles are over the turns. Memory is the peak
resident memory during a few updates, minus that before the model was built, in one process per
model. The table in docs/models.md comes from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch.nn import functional

from measuring.command import plain_parser
from measuring.models import build_model, dictionary_of
from measuring.timing import alternate, memory_mib, quartiles, return_freed_memory
from norm_plugin.io.command_line import at_least

LETTERS, ROWS, LENGTH = 64, 12, 64
WARMUP = 3
PLAIN = "plain decoder"
MODELS = {PLAIN: "norm_transformer_lm_char_postln"} | {
    f"Transformer-XL, memory {memory}": f"norm_transformer_xl_char_postln --mem-len {memory}"
    for memory in (0, LENGTH)
}


def updates(name: str) -> Callable[[], None]:
    """Return a call that makes one update of a model of :data:`MODELS` on the next segment."""
    flags = f"--task language_modeling --arch {MODELS[name]} --tokens-per-sample {LENGTH} "
    flags += f"--max-target-positions {LENGTH}"
    model = build_model(dictionary_of(4 + LETTERS), *flags.split()).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    number, generator = itertools.count(), torch.Generator().manual_seed(1)

    def update() -> None:
        tokens = torch.randint(4, 4 + LETTERS, (ROWS, LENGTH + 1), generator=generator)
        of_text = {} if name == PLAIN else {"segment": next(number)}
        optimizer.zero_grad()
        logits = model(tokens[:, :-1], **of_text)[0]
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return update


def peak(name: str) -> float:
    """Return the memory of a few updates in MiB; call it in a process of its own."""
    torch.set_num_threads(1)
    return_freed_memory()
    before = memory_mib("VmRSS")
    update = updates(name)
    for _ in range(WARMUP):
        update()
    return memory_mib("VmHWM") - before


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command, and print a line for each model."""
    parser = plain_parser(__doc__)
    parser.add_argument("--updates", type=at_least(1), default=60, metavar="N", help="timed")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    times = alternate({name: updates(name) for name in MODELS}, args.updates, WARMUP)
    for name, own in times.items():
        low, middle, high = quartiles([plain / ours for plain, ours in zip(times[PLAIN], own)])
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            memory = pool.submit(peak, name).result()
        print(
            f"| {name} | {1000 / quartiles(own).p50:.1f} | {middle:.2f} ({low:.2f} to {high:.2f}) "
            f"| {memory:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
