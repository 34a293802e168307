"""Measure what the papers claim about a Transformer at the start of training, and judge it.

    python -m papers.theory
    python -m papers.theory last-layer hidden-states
    python -m papers.theory trained-layers --checkpoint run/best.pt

The measurements of each claim are written to a CSV file in the folder --out, and its section is
printed as Markdown, with its tables. ``python -m papers`` writes the tables of papers/theory.md
from papers/data/theory/. With the defaults this takes a few minutes.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from norm_lab.paths import ROOT
from norm_plugin.io.command_line import CommandError, did_you_mean, run_command
from norm_plugin.io.files import make_folder
from papers.theory import CLAIMS
from papers.theory.claim import Options
from papers.theory.models import real_batches
from papers.theory.page import block, draw, measure, origin, store


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m papers.theory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("claims", nargs="*", metavar="NAME", help=f"default: all of {', '.join(CLAIMS)}")
    add("--data", type=Path, metavar="BIN", help="binarized data, for batches of real text too")
    text = "trained models, for the claims trained-layers, gain-over-psi and assumption-two"
    add("--checkpoint", type=Path, nargs="+", default=(), metavar="FILE", help=text)
    out = ROOT / "papers" / "data" / "theory"
    add("--out", type=Path, default=out, metavar="DIR", help="the folder of the CSV and SVG files")
    args = parser.parse_args(argv)
    for name in args.claims:
        if name not in CLAIMS:
            raise CommandError(f"there is no claim {name}; {did_you_mean(name, CLAIMS)}")
    # torch warns about the masks of fairseq's attention
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
    for package in ("norm_plugin", "fairseq"):
        logging.getLogger(package).setLevel(logging.WARNING)
    real = None if args.data is None else real_batches(args.data, Options.seeds)
    options = Options(real=real, checkpoints=tuple(args.checkpoint), data=args.data)
    report(
        args.claims or list(CLAIMS), options, args.out, shlex.join([*parser.prog.split(), *argv])
    )
    return 0


def report(claims: Sequence[str], options: Options, out: Path, command: str) -> None:
    """Measure claims, write their files to a folder, and print their sections."""
    made = origin(command, options)
    make_folder(out, "--out")
    for name in claims:
        if rows := list(measure(name, options)):
            store(name, rows, made, out)
            draw(name, out)
            title, _, rest = (CLAIMS[name].__doc__ or "").strip().partition("\n")
            print(f"## {title.rstrip('.')}\n{rest}\n\n{block(name, out, out)}\n", flush=True)


if __name__ == "__main__":
    run_command(main)
