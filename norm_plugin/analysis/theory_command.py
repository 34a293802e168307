"""Measure what the papers claim about a Transformer at the start of training, and write a page.

    norm-plugin theory
    norm-plugin theory --claims last-layer --placement post,pre
    norm-plugin theory --claims trained-layers --checkpoint run/best.pt

Each claim has a CSV and an SVG file in the folder --out. The tables and figures of all claims in
that folder, also of those measured earlier, are written to the page --page, between the lines
``<!-- begin:theory/CLAIM -->`` and ``<!-- end:theory/CLAIM -->``; other text is not changed. A
claim that the page lacks gets a section at its end. With the defaults this takes less than three
minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import norm_plugin
from norm_plugin.analysis.figures import draw
from norm_plugin.analysis.tables import markdown
from norm_plugin.analysis.theory import CLAIMS
from norm_plugin.analysis.theory.batches import random_batches, real_batches
from norm_plugin.analysis.theory.claim import INTERVAL, Claim, Options, Row, finite_cases
from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import (
    CommandError,
    at_least,
    check_output,
    read_json,
    read_text,
    write_text,
)
from norm_plugin.experiments.collect import git_state, short_commit, versions
from norm_plugin.norms import norm_spec
from norm_plugin.placements import PLACEMENTS, placement_class

MADE = "made.json"
MAIN = ("post", "pre")
"""The placements that Xiong et al. 2020 compare."""
COMMAND = ("norm-plugin", "theory")
DEFAULTS = Options(placements=tuple(PLACEMENTS), main=(), random=random_batches())


# The command line


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    flags = argparse.ArgumentParser(
        prog=" ".join(COMMAND),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, of_type, default, text in (
        ("norm-type", str, DEFAULTS.norm_type, "the norm at every site"),
        ("depth", at_least(2), DEFAULTS.depth, "layers of a stack for measurements by layer"),
        ("dim", at_least(4), DEFAULTS.dim, "channels in the simplified setting"),
        ("full-dim", at_least(4), DEFAULTS.full_dim, "channels of the full model"),
        ("seeds", at_least(1), DEFAULTS.seeds, "seeds of post and pre; others have half as many"),
        ("workers", at_least(1), 2, "processes; each has one thread if there are several"),
        ("out", Path, Path("results/theory"), "the folder of the CSV and SVG files"),
        ("page", Path, Path("docs/theory.md"), "the page"),
    ):
        text += " (default: %(default)s)"
        flags.add_argument(f"--{name}", type=of_type, default=default, help=text)
    layers = f"numbers of layers, two or more (default: {','.join(map(str, DEFAULTS.layers))})"
    flags.add_argument(
        "--layers", type=numbers, default=DEFAULTS.layers, metavar="L,...", help=layers
    )
    flags.add_argument(
        "--claims", type=names, metavar="C,...", help=f"default: all of {', '.join(CLAIMS)}"
    )
    flags.add_argument(
        "--placement",
        type=names,
        dest="placements",
        default=DEFAULTS.placements,
        metavar="P,...",
        help="default: every placement",
    )
    flags.add_argument(
        "--data", type=Path, metavar="BIN", help="binarized data, for batches of real text too"
    )
    flags.add_argument(
        "--checkpoint",
        type=Path,
        nargs="+",
        dest="checkpoints",
        default=[],
        metavar="FILE",
        help="trained models, for the claim trained-layers",
    )
    add_user_dir(flags)
    flags.add_argument(
        "--only-page",
        action="store_true",
        help="only write the figures and the page again, from the files in --out",
    )
    return flags


def names(text: str) -> tuple[str, ...]:
    """The type of a list of names, separated by commas."""
    return tuple(name for name in text.split(",") if name)


def numbers(text: str) -> tuple[int, ...]:
    """The type of two or more distinct numbers from 1 on, separated by commas; sorted."""
    values = tuple(sorted(set(map(at_least(1), names(text)))))
    if len(values) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: give two numbers or more, as in 2,4,8")
    return values


def options_of(args: argparse.Namespace) -> Options:
    """The options of the claims, from the flags.

    Raises:
        CommandError: an unknown placement, norm or claim, a claim that lacks what it needs, or
            data that cannot be read.
    """
    try:
        norm_spec(args.norm_type)
        for placement in args.placements:
            placement_class(placement)
    except ValueError as error:
        raise CommandError(str(error)) from error
    for name in args.claims or ():
        if name not in CLAIMS:
            raise CommandError(f"no claim {name!r}; choose from {', '.join(CLAIMS)}")
    if "trained-layers" in (args.claims or ()) and not args.checkpoints:
        raise CommandError("the claim trained-layers needs --checkpoint FILE")
    as_given = ("placements", "norm_type", "layers", "depth", "dim", "full_dim", "seeds", "data")
    return Options(
        main=tuple(p for p in args.placements if p in MAIN) or args.placements[:1],
        random=DEFAULTS.random,
        real=None if args.data is None else real_batches(args.data, args.seeds),
        checkpoints=tuple(args.checkpoints),
        **{name: getattr(args, name) for name in as_given},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    args = parser().parse_args(argv)
    quiet()
    import_user_dir(args.user_dir)
    check_output(args.page)
    if not args.only_page:
        options = options_of(args)
        made = origin(shlex.join([*COMMAND, *(sys.argv[1:] if argv is None else argv)]), options)
        args.out.mkdir(parents=True, exist_ok=True)
        claims = args.claims or tuple(CLAIMS)
        for name, frame in measure(claims, options, args.workers, args.user_dir).items():
            if len(frame):
                store(CLAIMS[name], frame, made, args.out)
                print(f"{name}: {len(frame)} rows")
    write_page(args.out, args.page)
    print(args.page)
    return 0


# Measuring


def measure(
    claims: Sequence[str], options: Options, workers: int, user_dir: Path | None
) -> dict[str, pd.DataFrame]:
    """Measure these claims.

    All claims of a placement are measured together, as they share forward and backward passes.

    Args:
        workers: the number of processes, with one thread each; 1 for this process alone.
        user_dir: a folder that each process imports.
    """
    frames = [{name: CLAIMS[name].measure_once(options) for name in claims}]
    work = partial(of_placement, tuple(claims), options)
    if workers == 1:
        frames += map(work, options.placements)
    else:
        spawn = get_context("spawn")
        with ProcessPoolExecutor(workers, spawn, start_worker, (user_dir,)) as pool:
            frames += pool.map(work, options.placements)
    # the columns of an empty frame have no types
    parts = {name: [some[name] for some in frames if len(some[name])] for name in claims}
    return {
        name: pd.concat(of_claim, ignore_index=True) if of_claim else pd.DataFrame()
        for name, of_claim in parts.items()
    }


def of_placement(
    claims: Sequence[str], options: Options, placement: str
) -> dict[str, pd.DataFrame]:
    """The measurements of one placement."""
    frames = {name: CLAIMS[name].measure(options, placement) for name in claims}
    print(f"measured {placement}", flush=True)
    return frames


def start_worker(user_dir: Path | None) -> None:
    """Prepare a process: one thread, no logging, the norms of the user."""
    torch.set_num_threads(1)
    quiet()
    import_user_dir(user_dir)


def quiet() -> None:
    """Silence the log messages of building models and reading data."""
    for name in ("norm_plugin", "fairseq"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # torch warns about the masks of fairseq's attention
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")


# Files


def origin(command: str, options: Options) -> Row:
    """The origin of measurements, for ``made.json``: command, settings, commit and versions."""
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
    """The name and checksum of a corpus from its manifest, or else the name of the folder."""
    path = data.parent / "manifest.json"
    manifest = read_json(path) if path.is_file() else {}
    corpus, checksum = manifest.get("corpus", data.name), str(manifest.get("checksum", ""))
    return f"{corpus} {checksum[:16]}".strip()


def store(claim: Claim, frame: pd.DataFrame, made: Row, folder: Path) -> None:
    """Write the measurements of a claim and their origin; this replaces older ones."""
    text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(folder / f"{claim.name}.csv", text)
    entries = {**read_made(folder), claim.name: made}
    write_text(folder / MADE, json.dumps(entries, indent=2, sort_keys=True) + "\n")


def read_made(folder: Path) -> dict[str, Any]:
    """The origin of the measurements of each claim in ``folder``, by its name."""
    path = folder / MADE
    made: dict[str, Any] = read_json(path) if path.exists() else {}
    return made


def read_measurements(claim: Claim, folder: Path) -> pd.DataFrame:
    """Read what :func:`store` has written; only empty cells and ``nan`` are missing values."""
    path = folder / f"{claim.name}.csv"
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=["", "nan"])
    except (OSError, ValueError) as error:  # pandas' errors of parsing are ValueErrors
        raise CommandError(f"cannot read {path}: {error}") from error


# The page


def write_page(folder: Path, page: Path) -> None:
    """Draw the figures of the measured claims in ``folder``, and write their blocks in ``page``.

    Raises:
        CommandError: no claim is measured, or a file is missing.
    """
    measured = [claim for name, claim in CLAIMS.items() if name in read_made(folder)]
    if not measured:
        raise CommandError(f"{folder} holds no measured claim; measure some first")
    text = read_text(page) if page.exists() else "# The theory, measured\n"
    for claim in measured:
        svg = drawing(claim, read_measurements(claim, folder))
        write_text(folder / f"{claim.name}.svg", svg)
        begin, end = (f"<!-- {side}:theory/{claim.name} -->" for side in ("begin", "end"))
        if text.count(begin) != text.count(end):
            raise CommandError(f"{page} has not one {end} for each {begin}")
        around = re.split(f"{begin}\n.*?{end}", text, maxsplit=1, flags=re.DOTALL)
        if len(around) == 1:
            title, _, rest = claim.text.partition("\n")
            around = [f"{text}\n## {title.rstrip('.')}\n{rest}\n\n", "\n"]
        text = f"{begin}\n{block(claim.name, folder, page)}\n{end}".join(around)
    write_text(page, text)


def drawing(claim: Claim, frame: pd.DataFrame) -> str:
    """The figure of a claim for its finite cases, as SVG."""
    finite, _ = finite_cases(claim, frame)

    def plot(axes: Any) -> None:
        if len(finite):
            claim.plot(finite, axes)

    return draw(plot, claim.height, claim.name).standalone


def block(name: str, folder: Path, page: Path) -> str:
    """The block of a claim in ``page``, in Markdown, from its measurements in ``folder``."""
    claim, made = CLAIMS[name], read_made(folder)[name]
    finite, left_out = finite_cases(claim, read_measurements(claim, folder))
    tables = [pd.DataFrame([*left_out, *(claim.verdicts(finite) if len(finite) else [])])]
    tables += claim.tables(finite) if len(finite) else []
    numbers = ", ".join(f"{key} {value}" for key, value in made["versions"].items() if value)
    settings = ", ".join(f"{key} {value}" for key, value in made["settings"].items())
    to_folder = Path(os.path.relpath(folder, page.parent)).as_posix()
    return "\n\n".join(
        [
            *(markdown(cells(table)) for table in tables),
            f"![{claim.caption}]({to_folder}/{name}.svg)",
            f"{claim.caption} Data: [{name}.csv]({to_folder}/{name}.csv).",
            f"Measured on {made['date']} at commit {short_commit(made['git'])} by "
            f"`{made['command']}` ({settings}; {numbers}).",
        ]
    )


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """A table with ``holds`` as the last column, and without an empty column of intervals."""
    table = table.astype(object).fillna("")
    if "holds" in table:
        table = table[[*table.columns.drop("holds"), "holds"]]
        table = table.drop(columns=INTERVAL) if table[INTERVAL].isin(["-", ""]).all() else table
    return table
