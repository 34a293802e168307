#!/usr/bin/env python3
"""Measure what folding norms saves in decoding: folded, unfolded, and LayerNorm's models.

python benchmarks/decoding.py --threads 2

All models have the same architecture and initial weights. Their statistics are those of a few
random batches, and each channel has a gain and an offset of its own. They take turns (A B A B): the
encoder over one batch of random sentences of various lengths, and the generation of a fixed number
of words for it by fairseq's beam search, the encoder included. Before that, the folded model must
give the logits of the unfolded one. Every row of benchmarks/results/decoding.csv has the quartiles
in milliseconds, and the ratio of the median to that of LayerNorm in the same run.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from measuring.command import benchmark_parser, parse_benchmark, quiet, run_benchmark
from measuring.models import build_model, dictionary_of
from measuring.records import Record
from measuring.timing import alternate, quartiles
from norm_plugin.io.command_line import CommandError, at_least, run_command
from norm_plugin.kernels import describe, resolve
from norm_plugin.models import fold_norms
from norm_plugin.norms import norm_spec

LAYERNORM = "layernorm"
TRAINING_BATCHES = 5
CLOSE = 1e-3  # float32 rounding through twelve layers; the logits are of size 1
Call = Callable[[], object]


def random_batch(dictionary: Dictionary, sentences: int, length: int) -> dict[str, torch.Tensor]:
    """Return sentences of half to all of ``length`` words, padded on the left as fairseq's are."""
    tokens = torch.randint(dictionary.nspecial, len(dictionary), (sentences, length))
    tokens[:, -1] = dictionary.eos()
    lengths = torch.linspace(length, max(length // 2, 1), sentences).long()
    padding = torch.arange(length) < (length - lengths).unsqueeze(1)
    return {
        "src_tokens": tokens.masked_fill(padding, dictionary.pad()),
        "src_lengths": lengths,
        "prev_output_tokens": tokens.roll(1, dims=1),
    }


def build(args: argparse.Namespace, norm: str, dictionary: Dictionary) -> Any:
    """Return a pre-norm model with ``norm`` in the encoder, not pre-scaled, statistics updated."""
    flags = f"--arch {args.arch} --norm-type {norm} --norm-placement pre --dropout 0"
    if norm_spec(norm).has_option("layer_scale_groups"):
        flags += " --norm-layer-scale-groups 0"
    model = build_model(dictionary, *flags.split(), "--share-all-embeddings")
    for name, parameter in model.named_parameters():
        if "layer_norm" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.no_grad():
        for update in range(TRAINING_BATCHES):
            model.set_num_updates(update)
            model.train()(**random_batch(dictionary, args.sentences, args.length))
    return model.eval()


def variants(
    args: argparse.Namespace, dictionary: Dictionary, batch: dict[str, torch.Tensor]
) -> dict[tuple[str, str], Any]:
    """Return the models by norm and form: LayerNorm's, and each norm's unfolded and folded one."""
    models = {(LAYERNORM, "unfolded"): build(args, LAYERNORM, dictionary)}
    for norm in args.norms:
        plain = build(args, norm, dictionary)
        folded = copy.deepcopy(plain)
        for folding in fold_norms(folded):
            print(folding)
        with torch.no_grad():
            difference = (folded(**batch)[0] - plain(**batch)[0]).abs().max().item()
        print(f"{norm}: the logits differ by {difference:.1e} at most")
        if difference > CLOSE:
            raise CommandError(f"{norm}: folding changes the logits by {difference:.1e} > {CLOSE}")
        models[norm, "unfolded"], models[norm, "folded"] = plain, folded
    return models


@torch.no_grad()
def encode(model: Any, batch: dict[str, torch.Tensor]) -> object:
    """Return the output of the encoder."""
    return model.encoder(batch["src_tokens"], batch["src_lengths"])


def generation(
    model: Any, batch: dict[str, torch.Tensor], dictionary: Dictionary, args: argparse.Namespace
) -> Call:
    """Return a beam search over ``batch``, in which sentences have ``args.steps`` words or more."""
    model.make_generation_fast_(beamable_mm_beam_size=args.beam, need_attn=False)
    search = SequenceGenerator(
        [model], dictionary, beam_size=args.beam, max_len_b=args.steps, min_len=args.steps
    )
    sample = {"net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}}
    return lambda: search.generate([model], sample)


def measure(
    stage: str, calls: dict[tuple[str, str], Call], args: argparse.Namespace
) -> Iterator[Record]:
    """Yield a row for each model: its quartiles in ``stage``, encoder or generation."""
    times = alternate(calls, args.repetitions, warmup=3)
    unit = quartiles(times[LAYERNORM, "unfolded"]).p50
    for (norm, form), values in times.items():
        yield {
            "arch": args.arch,
            "kernels": describe(resolve(None)),
            "norm": norm,
            "form": form,
            "stage": stage,
            **{key: getattr(args, key) for key in ("sentences", "length", "beam", "steps")},
            "repetitions": args.repetitions,
            **quartiles(values).rounded(3),
            "ratio_to_layernorm": round(quartiles(values).p50 / unit, 4),
        }


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``argv`` is sys.argv[1:]."""
    parser = benchmark_parser(__doc__, "decoding.csv")
    parser.set_defaults(norms=["batchnorm", "powernorm"])
    parser.add_argument(
        "--arch", default="norm_transformer_iwslt_de_en", help="default: %(default)s"
    )
    for flag, least, default, text in (
        ("--words", 5, 10_149, "words of the vocabulary"),
        ("--sentences", 1, 16, "sentences in the batch"),
        ("--length", 1, 32, "words of the longest sentence"),
        ("--beam", 1, 5, "beam of the search"),
        ("--steps", 1, 20, "words to generate"),
        ("--repetitions", 1, 50, "of each"),
    ):
        text += " (default: %(default)s)"
        parser.add_argument(flag, type=at_least(least), default=default, metavar="N", help=text)
    return parse_benchmark(parser, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both stages of all models, and append the rows."""
    args = parse_args(argv)
    quiet()
    torch.set_num_threads(args.threads)
    dictionary = dictionary_of(args.words)
    torch.manual_seed(2)
    batch = random_batch(dictionary, args.sentences, args.length)
    models = variants(args, dictionary, batch)

    def measurements() -> Iterator[list[Record]]:
        calls: dict[tuple[str, str], Call]
        calls = {key: partial(encode, model, batch) for key, model in models.items()}
        yield list(measure("encoder", calls, args))
        calls = {key: generation(model, batch, dictionary, args) for key, model in models.items()}
        yield list(measure("generation", calls, args))

    return run_benchmark(args, measurements())


if __name__ == "__main__":
    run_command(main)
