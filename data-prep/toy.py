#!/usr/bin/env python3
"""Write the toy corpus (English and Velan, an invented language) and prepare it.

The grammar is in prep/toy/grammar.py. The text is lowercase, needs no BPE and is made in seconds.
The same --seed gives the same bytes on every machine. Language codes: en and xx.
"""

from __future__ import annotations

import argparse
import hashlib
from functools import partial
from itertools import islice
from pathlib import Path

from prep.binarize import binarize, make_dictionaries
from prep.command_line import SEED, add_common_arguments, at_least
from prep.exit_status import run_command
from prep.manifest import Counts, make_recipe
from prep.messages import report
from prep.publishing import publish, publish_binarized
from prep.text_files import SPLITS, write_lines
from prep.toy.grammar import SOURCE, TARGET, Grammar


def generate(seed: int, sizes: dict[str, int]) -> dict[str, list[str]]:
    """The tokenized lines of each file (`train.en`, ...). No sentence is in two splits."""
    pairs = Grammar(seed).sentences()
    files = {}
    for split, size in sizes.items():
        part = list(islice(pairs, size))
        files[f"{split}.{SOURCE}"] = [source for source, _ in part]
        files[f"{split}.{TARGET}"] = [target for _, target in part]
    return files


def detokenize(line: str) -> str:
    """A sentence as it is written: without a space before its full stop."""
    return line[: -len(" .")] + "."


def build(work: Path, files: dict[str, list[str]]) -> dict[str, Counts]:
    """Fill `work` with raw/, tok/ and the dictionaries; there is no BPE and no raw train."""
    for name, lines in files.items():
        write_lines(work / "tok" / name, lines)
        if not name.startswith("train."):
            write_lines(work / "raw" / name, map(detokenize, lines))
    report(f"write {', '.join(files)}")
    make_dictionaries(work / "tok", work / "bin", SOURCE, TARGET, True)
    return {}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; `argv` is sys.argv without it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    parser.add_argument("--seed", type=SEED, default=1, metavar="N", help="default: %(default)s")
    for split, size in {"train": 8000, "valid": 500, "test": 500}.items():
        parser.add_argument(
            f"--{split}",
            type=at_least(1),
            default=size,
            metavar="N",
            help="pairs (default: %(default)s)",
        )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Write and prepare the corpus; raises PrepError if --out holds something else."""
    args = parse_args(argv)
    if args.only in (None, "prepare"):
        _prepare(args)
    if args.only in (None, "binarize"):
        recipe = make_recipe("toy", SOURCE, TARGET, {}, {})
        publish_binarized(args.out, recipe, partial(_binarize, args=args), args.overwrite)
    if args.only == "fetch":
        report("nothing to fetch: the toy corpus is generated")


def _prepare(args: argparse.Namespace) -> None:
    sizes = {split: getattr(args, split) for split in SPLITS}
    files = generate(args.seed, sizes)
    inputs = {
        name: hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
        for name, lines in files.items()
    }
    settings = {"seed": args.seed, **sizes}
    recipe = make_recipe("toy", SOURCE, TARGET, settings, inputs)
    publish(args.out, recipe, partial(build, files=files), args.overwrite)


def _binarize(work: Path, args: argparse.Namespace) -> None:
    out = args.out
    binarize(out / "tok", out / "bin", work, SOURCE, TARGET, True, args.workers)


if __name__ == "__main__":
    run_command(main)
