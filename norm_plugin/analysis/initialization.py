"""Measure what the papers claim about a Transformer at the start of training, and write a page.

    python -m norm_plugin.analysis.initialization
    python -m norm_plugin.analysis.initialization --claims last-layer --placement post,pre
    python -m norm_plugin.analysis.initialization --claims trained-layers --checkpoint run/best.pt

For each claim, CSV and SVG files go to the folder --out. The page --page is then made from all
claims in that folder, those measured earlier too. With the defaults this takes less than three
minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import norm_plugin
from norm_plugin.analysis.theory.batches import random_batches, real_batches
from norm_plugin.analysis.theory.claim import Options
from norm_plugin.analysis.theory.claims import CLAIMS
from norm_plugin.analysis.theory.measuring import measure, quiet
from norm_plugin.analysis.theory.page import page, redraw, store
from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import (
    CommandError,
    at_least,
    check_output,
    read_json,
    run_command,
    write_text,
)
from norm_plugin.experiments.provenance import git_state, versions
from norm_plugin.norms import norm_spec
from norm_plugin.placements import PLACEMENTS, placement_class

WORKERS = 2
MAIN = ("post", "pre")
"""The placements that Xiong et al. 2020 compare."""
COMMAND = ("python", "-m", "norm_plugin.analysis.initialization")
DEFAULTS = Options(placements=(), main=(), random=random_batches())


def words(text: str) -> tuple[str, ...]:
    """Words that are separated by commas."""
    return tuple(word for word in text.split(",") if word)


def numbers(text: str) -> tuple[int, ...]:
    """Distinct numbers from 1, separated by commas, rising."""
    try:
        found = sorted({int(word) for word in words(text)})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: 2,4,8") from error
    if not found or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give one number or more, each from 1")
    return tuple(found)


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    flags = argparse.ArgumentParser(
        prog=" ".join(COMMAND),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument(
        "--claims", type=words, metavar="C,...", help=f"default: all of {', '.join(CLAIMS)}"
    )
    flags.add_argument("--placement", type=words, metavar="P,...", help="default: every placement")
    flags.add_argument(
        "--norm-type", default=DEFAULTS.norm_type, metavar="N", help="default: %(default)s"
    )
    flags.add_argument(
        "--layers",
        type=numbers,
        default=DEFAULTS.layers,
        metavar="L,...",
        help=f"numbers of layers, two or more (default: {','.join(map(str, DEFAULTS.layers))})",
    )
    for name, least, text in (
        ("depth", 2, "layers of the stacks that are looked at layer by layer"),
        ("dim", 4, "channels in the simplified setting"),
        ("full-dim", 4, "channels of the full model"),
        ("seeds", 1, "seeds of post and pre; other placements have half as many"),
        ("workers", 1, "processes, each of one thread if there are several"),
    ):
        default = getattr(DEFAULTS, name.replace("-", "_"), WORKERS)
        flags.add_argument(
            f"--{name}",
            type=at_least(least),
            default=default,
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )
    flags.add_argument(
        "--data", type=Path, metavar="BIN", help="binarized data, for batches of real text too"
    )
    flags.add_argument(
        "--checkpoint",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="trained models, for the claim trained-layers",
    )
    add_user_dir(flags)
    flags.add_argument(
        "--out",
        type=Path,
        default=Path("results/theory"),
        metavar="DIR",
        help="default: %(default)s",
    )
    flags.add_argument(
        "--page", type=Path, default=Path("docs/theory.md"), help="default: %(default)s"
    )
    flags.add_argument(
        "--only-page",
        action="store_true",
        help="measure nothing; draw the figures and write the page anew from what is in --out",
    )
    return flags


def options_of(args: argparse.Namespace) -> Options:
    """What the flags ask for.

    Raises:
        CommandError: an unknown placement, norm or claim, too few numbers of layers, a claim that
            lacks what it needs, or data that cannot be read.
    """
    placements = args.placement or tuple(PLACEMENTS)
    try:
        norm_spec(args.norm_type)
        for placement in placements:
            placement_class(placement)
    except ValueError as error:
        raise CommandError(str(error)) from error
    unknown = [name for name in args.claims or () if name not in CLAIMS]
    if unknown:
        raise CommandError(f"no claim {unknown[0]!r}; choose from {', '.join(CLAIMS)}")
    if len(args.layers) < 2:
        raise CommandError(f"--layers is {args.layers[0]}: an exponent needs two numbers or more")
    if args.claims and "trained-layers" in args.claims and not args.checkpoint:
        raise CommandError("the claim trained-layers needs --checkpoint FILE")
    return Options(
        placements=placements,
        main=tuple(one for one in placements if one in MAIN) or placements[:1],
        random=DEFAULTS.random,
        real=None if args.data is None else real_batches(args.data, args.seeds),
        norm_type=args.norm_type,
        layers=args.layers,
        depth=args.depth,
        dim=args.dim,
        full_dim=args.full_dim,
        seeds=args.seeds,
        checkpoints=tuple(args.checkpoint),
        data=args.data,
    )


def made_by(command: str, options: Options) -> dict[str, Any]:
    """How measurements come about: what ``made.json`` has of each claim."""
    settings = {
        "norm": options.norm_type,
        "L": " ".join(map(str, options.layers)),
        "depth": options.depth,
        "d": options.dim,
        "d of the full model": options.full_dim,
        "seeds": options.seeds,
    }
    if options.data is not None:
        settings["data"] = name_of(options.data)
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "git": git_state(Path(norm_plugin.__file__).parent),
        "settings": settings,
        "versions": versions(),
    }


def name_of(data: Path) -> str:
    """Of a corpus: what the manifest beside it says, or else the name of the folder."""
    manifest = data.parent / "manifest.json"
    if not manifest.is_file():
        return data.name
    found = read_json(manifest)
    return f"{found.get('corpus', data.name)} {str(found.get('checksum', ''))[:16]}".strip()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    args = parser().parse_args(argv)
    quiet()
    import_user_dir(args.user_dir)
    check_output(args.page)
    if not args.only_page:
        words_given = sys.argv[1:] if argv is None else argv
        measure_into(args, shlex.join([*COMMAND, *words_given]))
    redraw(args.out)
    write_text(args.page, page(args.out, args.page))
    print(args.page)
    return 0


def measure_into(args: argparse.Namespace, command: str) -> None:
    """Measure what the flags ask for into the folder ``--out``."""
    options = options_of(args)
    made = made_by(command, options)
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.claims or tuple(CLAIMS)
    for name, rows in measure(names, options, args.workers, args.user_dir).items():
        if rows:
            store(CLAIMS[name], rows, made, args.out)
            print(f"{name}: {len(rows)} rows")


if __name__ == "__main__":
    run_command(main)
