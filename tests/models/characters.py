"""A tiny text of characters in fairseq's binary form, and what trains a language model of it."""

from __future__ import annotations

import argparse
import functools

import torch
from composed import configure
from fairseq import models, tasks
from fairseq.data import Dictionary, indexed_dataset

import norm_plugin.models  # noqa: F401  registers the architectures

LETTERS = "abcdefghijklmnop"
TINY = {
    "decoder_layers": 2,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 32,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
}
TRAINING = (
    *("--optimizer", "adam", "--lr", "0.01", "--lr-scheduler", "inverse_sqrt", "--cpu"),
    *("--warmup-updates", "4", "--batch-size", "8", "--seed", "3", "--num-workers", "0"),
    *("--log-format", "json", "--log-interval", "1", "--required-batch-size-multiple", "1"),
)


def write_text(folder, lines=60):
    """Lines of 3 to 12 letters; a letter is followed by one of the next three."""
    folder.mkdir(parents=True)
    dictionary = Dictionary()
    for letter in LETTERS:
        dictionary.add_symbol(letter)
    dictionary.save(str(folder / "dict.txt"))
    generator = torch.Generator().manual_seed(5)
    for split in ("train", "valid", "test"):
        builder = indexed_dataset.make_builder(str(folder / f"{split}.bin"), "mmap", vocab_size=20)
        for _ in range(lines):
            length = int(torch.randint(3, 13, (), generator=generator))
            steps = torch.randint(1, 4, (length,), generator=generator)
            letters = 4 + steps.cumsum(0) % len(LETTERS)
            builder.add_item(torch.cat([letters, torch.tensor([dictionary.eos()])]).int())
        builder.finalize(str(folder / f"{split}.idx"))
    return folder


def command(data, *flags, arch="norm_transformer_lm_char"):
    """The command line of fairseq-train for a language model on the text in ``data``."""
    task = ("--task", "language_modeling", "--tokens-per-sample", 12)
    return (data, *task, "--arch", arch, *TRAINING, *flags)


@functools.cache
def task_of(data):
    """The task of such flags. hydra takes most of a second for it."""
    return tasks.setup_task(configure(*command(data)).task)


def build(data, arch="norm_transformer_lm_char", seed=1, **settings):
    """A tiny model of these settings, without a parser; and the task of the text."""
    args = argparse.Namespace(arch=arch, max_target_positions=12, **{**TINY, **settings})
    torch.manual_seed(seed)
    return models.build_model(args, task_of(data)), task_of(data)


def batch(task, rows=5, columns=9):
    """A sample of a criterion: tokens (B, T), the last rows shorter, and their next tokens."""
    pad, eos = task.source_dictionary.pad(), task.source_dictionary.eos()
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(4, 20, (rows, columns + 1), generator=generator)
    tokens[:, 0] = eos
    for row, left_out in zip(range(rows - 1, 0, -1), (5, 2)):
        tokens[row, columns + 1 - left_out :] = pad
    target = tokens[:, 1:].contiguous()
    source = tokens[:, :-1].masked_fill(target.eq(pad), pad)
    lengths = source.ne(pad).sum(dim=1)
    return {
        "net_input": {"src_tokens": source, "src_lengths": lengths},
        "target": target,
        "ntokens": int(lengths.sum()),
        "nsentences": rows,
    }
