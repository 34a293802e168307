"""Measure what the papers claim about a Transformer at the start of training, and write a page.

    norm-plugin theory
    norm-plugin theory --claims last-layer --placement post,pre
    norm-plugin theory --claims trained-layers --checkpoint run/best.pt

For each claim, CSV and SVG files go to the folder --out. The page --page then gets a section for
each claim in that folder, those measured earlier too; what is typed around the sections stays. With
the defaults this takes less than three minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import shlex
import sys
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

import norm_plugin
from norm_plugin.analysis.theory import CLAIMS
from norm_plugin.analysis.theory.claim import Options, Row, store, write_page
from norm_plugin.analysis.theory.stacks import random_batches, real_batches
from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import (
    CommandError,
    at_least,
    check_output,
    read_json,
)
from norm_plugin.experiments.provenance import git_state, versions
from norm_plugin.norms import norm_spec
from norm_plugin.placements import PLACEMENTS, placement_class

WORKERS = 2
MAIN = ("post", "pre")
"""The placements that Xiong et al. 2020 compare."""
COMMAND = ("norm-plugin", "theory")
GIVEN = ("norm_type", "layers", "depth", "dim", "full_dim", "seeds", "data")
"""The options that are as the flags give them."""
DEFAULTS = Options(placements=(), main=(), random=random_batches())


def names(text: str) -> tuple[str, ...]:
    """Those that are separated by commas."""
    return tuple(name for name in text.split(",") if name)


def numbers(text: str) -> tuple[int, ...]:
    """Distinct numbers from 1, separated by commas, rising."""
    try:
        values = sorted({int(word) for word in names(text)})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: 2,4,8") from error
    if not values or values[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give one number or more, each from 1")
    return tuple(values)


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    flags = argparse.ArgumentParser(
        prog=" ".join(COMMAND),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument(
        "--claims", type=names, metavar="C,...", help=f"default: all of {', '.join(CLAIMS)}"
    )
    flags.add_argument("--placement", type=names, metavar="P,...", help="default: every placement")
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
        checkpoints=tuple(args.checkpoint),
        **{name: getattr(args, name) for name in GIVEN},
    )


def made_by(command: str, options: Options) -> Row:
    """How measurements come about: what ``made.json`` has of each claim."""
    settings: Row = {
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


Measurements = dict[str, list[Row]]
"""By claim."""


def measure(
    names: Sequence[str], options: Options, workers: int, user_dir: Path | None
) -> Measurements:
    """The measurements of these claims.

    A placement is one piece of work, so that its claims share their passes.

    Args:
        workers: processes of one thread each; 1: this process, with its threads.
        user_dir: imported by each process.
    """
    rows = {name: list(CLAIMS[name].measure_once(options)) for name in names}
    work = partial(of_placement, tuple(names), options)

    def collect(parts: Iterable[Measurements]) -> None:
        for placement, part in zip(options.placements, parts):
            for name in names:
                rows[name] += part[name]
            print(f"measured {placement}", flush=True)

    if workers == 1:
        collect(map(work, options.placements))
    else:
        with ProcessPoolExecutor(
            workers, get_context("spawn"), initializer=start_worker, initargs=(user_dir,)
        ) as pool:
            collect(pool.map(work, options.placements))
    return rows


def of_placement(names: Sequence[str], options: Options, placement: str) -> Measurements:
    """The measurements of one placement."""
    return {name: list(CLAIMS[name].measure(options, placement)) for name in names}


def start_worker(user_dir: Path | None) -> None:
    """Prepare a process: one thread, no log of each model, the norms of the user."""
    torch.set_num_threads(1)
    quiet()
    import_user_dir(user_dir)


def quiet() -> None:
    """Let models be built, and data be read, without lines of log."""
    for name in ("norm_plugin", "fairseq"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # torch's, of the masks that fairseq's attention gives it
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    args = parser().parse_args(argv)
    quiet()
    import_user_dir(args.user_dir)
    check_output(args.page)
    if not args.only_page:
        given = sys.argv[1:] if argv is None else argv
        options = options_of(args)
        made = made_by(shlex.join([*COMMAND, *given]), options)
        args.out.mkdir(parents=True, exist_ok=True)
        claims = args.claims or tuple(CLAIMS)
        for name, rows in measure(claims, options, args.workers, args.user_dir).items():
            if rows:
                store(CLAIMS[name], rows, made, args.out)
                print(f"{name}: {len(rows)} rows")
    write_page(CLAIMS, args.out, args.page)
    print(args.page)
    return 0
