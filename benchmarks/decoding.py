#!/usr/bin/env python3
"""What folding norms away saves in decoding: a model folded, the same unfolded, and LayerNorm's.

python benchmarks/decoding.py --threads 2

All models are of one architecture and start from the same weights. Their statistics are those of
a few random batches, their gains and offsets a channel's own each. They take turns (A B A B):
the encoder over one batch of random sentences, ragged, and the generation of a fixed number of
words for it by fairseq's beam search, the encoder included. Before that the folded model must give
the logits of the unfolded one. Every row of benchmarks/results/decoding.csv has the quartiles in
milliseconds, and the ratio of the median to that of LayerNorm in the same run.
"""

from __future__ import annotations

import argparse
import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from measuring.models import build_model, dictionary_of
from measuring.records import RESULTS, append, provenance
from measuring.timing import alternate, quartiles
from norm_plugin.commands.command_line import at_least
from norm_plugin.kernels import describe, resolve
from norm_plugin.models import fold_norms
from norm_plugin.norms import norm_spec

OUTPUT = RESULTS / "decoding.csv"
LAYERNORM = "layernorm"
TRAINING_BATCHES = 5
CLOSE = 1e-3  # float32 rounding through twelve layers; the logits are of size 1
Call = Callable[[], object]


def random_batch(dictionary: Dictionary, sentences: int, length: int) -> dict[str, torch.Tensor]:
    """Sentences of half to all of ``length`` words, padded on the left as fairseq's sources are."""
    words = torch.randint(dictionary.nspecial, len(dictionary), (sentences, length))
    words[:, -1] = dictionary.eos()
    lengths = torch.linspace(length, max(length // 2, 1), sentences).long()
    padding = torch.arange(length) < (length - lengths).unsqueeze(1)
    return {
        "src_tokens": words.masked_fill(padding, dictionary.pad()),
        "src_lengths": lengths,
        "prev_output_tokens": words.roll(1, dims=1),
    }


def build(args: argparse.Namespace, norm: str, dictionary: Dictionary) -> Any:
    """A pre-norm model with ``norm``, without layer-scale, in the encoder; statistics moved."""
    flags = ["--arch", args.arch, "--norm-type", norm, "--norm-placement", "pre"]
    flags += ["--share-all-embeddings", "--dropout", "0"]
    if norm_spec(norm).has_option("layer_scale_groups"):
        flags += ["--norm-layer-scale-groups", "0"]
    model = build_model(dictionary, *flags)
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
    """The models, by norm and form: LayerNorm's, and of each norm the unfolded and the folded."""
    found = {(LAYERNORM, "unfolded"): build(args, LAYERNORM, dictionary)}
    for norm in args.norms:
        plain = build(args, norm, dictionary)
        folded = copy.deepcopy(plain)
        for folding in fold_norms(folded):
            print(folding)
        with torch.no_grad():
            difference = (folded(**batch)[0] - plain(**batch)[0]).abs().max().item()
        print(f"{norm}: the logits differ by {difference:.1e} at most")
        if difference > CLOSE:
            raise SystemExit(f"error: {norm} folded is another model ({difference:.1e} > {CLOSE})")
        found[norm, "unfolded"], found[norm, "folded"] = plain, folded
    return found


def encoding(model: Any, batch: dict[str, torch.Tensor]) -> Call:
    """The encoder over ``batch``."""

    def call() -> object:
        with torch.no_grad():
            return model.encoder(batch["src_tokens"], batch["src_lengths"])

    return call


def generation(
    model: Any, batch: dict[str, torch.Tensor], dictionary: Dictionary, args: argparse.Namespace
) -> Call:
    """Beam search over ``batch``, where no sentence may end before ``args.steps`` words."""
    model.make_generation_fast_(beamable_mm_beam_size=args.beam, need_attn=False)
    search = SequenceGenerator(
        [model], dictionary, beam_size=args.beam, max_len_b=args.steps, min_len=args.steps
    )
    sample = {"net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}}
    return lambda: search.generate([model], sample)


def measure(
    stage: str, calls: dict[tuple[str, str], Call], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each model: its quartiles in ``stage``, encoder or generation."""
    times = alternate(calls, args.repetitions, warmup=3)
    unit = quartiles(times[LAYERNORM, "unfolded"]).p50
    rows = []
    for (norm, form), values in times.items():
        p25, p50, p75 = quartiles(values)
        print(
            f"{stage:10}  {norm:22}  {form:8}  {p50:9.2f} ms ({p25:.2f} to {p75:.2f})  "
            f"{p50 / unit:.3f} of layernorm"
        )
        rows.append(
            {
                **provenance(),
                "arch": args.arch,
                "kernels": describe(resolve(None)),
                "norm": norm,
                "form": form,
                "stage": stage,
                **{key: getattr(args, key) for key in ("sentences", "length", "beam", "steps")},
                "repetitions": args.repetitions,
                **{"p25_ms": round(p25, 3), "p50_ms": round(p50, 3), "p75_ms": round(p75, 3)},
                "ratio_to_layernorm": round(p50 / unit, 4),
            }
        )
    return rows


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; ``argv`` is sys.argv without its first word."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--arch", default="norm_transformer_iwslt_de_en", help="default: %(default)s")
    add("--norms", nargs="+", default=["batchnorm", "powernorm"], help="default: %(default)s")
    add(
        "--words", type=at_least(5), default=10_149, help="of the vocabulary (default: %(default)s)"
    )
    add("--sentences", type=at_least(1), default=16, help="in the batch (default: %(default)s)")
    add("--length", type=at_least(1), default=32, help="of the longest one (default: %(default)s)")
    add("--beam", type=at_least(1), default=5, help="default: %(default)s")
    add("--steps", type=at_least(1), default=20, help="words to generate (default: %(default)s)")
    add("--repetitions", type=at_least(1), default=50, help="of each (default: %(default)s)")
    add("--threads", type=at_least(1), default=2, help="default: %(default)s")
    add("--output", type=Path, default=OUTPUT, help="CSV to append to (default: %(default)s)")
    add("--no-csv", action="store_true", help="print only")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure both stages of all models, and append the rows."""
    args = parse_args(argv)
    logging.getLogger("norm_plugin").setLevel(logging.WARNING)
    torch.set_num_threads(args.threads)
    dictionary = dictionary_of(args.words)
    torch.manual_seed(2)
    batch = random_batch(dictionary, args.sentences, args.length)
    found = variants(args, dictionary, batch)
    rows = measure("encoder", {key: encoding(one, batch) for key, one in found.items()}, args)
    searches = {key: generation(one, batch, dictionary, args) for key, one in found.items()}
    rows += measure("generation", searches, args)
    if not args.no_csv:
        append(args.output, rows)


if __name__ == "__main__":
    main()
