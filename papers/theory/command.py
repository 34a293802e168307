"""Measure what the papers claim about a Transformer at the start of training, and judge it.

    python -m papers.theory
    python -m papers.theory --claims last-layer --placement post,pre
    python -m papers.theory --claims trained-layers --checkpoint run/best.pt

The measurements of each claim are written to a CSV file in the folder --out, and its section is
printed as Markdown, with its tables. ``python -m papers`` writes the tables of papers/theory.md
from papers/data/theory/. With the defaults this takes a few minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

import norm_plugin
from norm_lab.report.figure import Figure
from norm_lab.report.text import markdown
from norm_lab.results.provenance import git_state, short_commit, versions
from norm_plugin.io.command_line import CommandError, at_least
from norm_plugin.io.files import make_folder, read_json, write_text
from norm_plugin.io.user_dirs import add_user_dir, import_user_dir
from norm_plugin.norms import norm_spec
from norm_plugin.placements import PLACEMENTS, placement_class
from papers.theory import CLAIMS
from papers.theory.claim import INTERVAL, Options, Row, finite_cases
from papers.theory.models import real_batches

MADE = "made.json"
SHOWN = {"layer_scale": "RMS pre-scaling"}
"""The titles of columns whose stored names are others."""
MAIN = ("post", "pre")
"""The placements that Xiong et al. 2020 compare."""
COMMAND = ("python", "-m", "papers.theory")


# The command line


def parser() -> argparse.ArgumentParser:
    """Return the flags of the command."""
    flags = argparse.ArgumentParser(
        prog=" ".join(COMMAND),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, of_type, default, text in (
        ("norm-type", str, Options.norm_type, "the norm at every site"),
        ("depth", at_least(2), Options.depth, "layers of a stack for measurements by layer"),
        ("dim", at_least(4), Options.dim, "channels in the simplified setting"),
        ("full-dim", at_least(4), Options.full_dim, "channels of the full model"),
        ("seeds", at_least(1), Options.seeds, "seeds of post and pre; others have half as many"),
        ("out", Path, Path("papers/data/theory"), "the folder of the CSV and SVG files"),
    ):
        text += " (default: %(default)s)"
        flags.add_argument(f"--{name}", type=of_type, default=default, help=text)
    add, layers = flags.add_argument, ",".join(map(str, Options.layers))
    text = f"numbers of layers, two or more (default: {layers})"
    add("--layers", type=numbers, default=Options.layers, metavar="L,...", help=text)
    text = f"default: all of {', '.join(CLAIMS)}"
    add("--claims", type=names, default=tuple(CLAIMS), metavar="C,...", help=text)
    every = tuple(PLACEMENTS)
    text = "default: every placement"
    add("--placement", type=names, default=every, dest="placements", metavar="P,...", help=text)
    add("--data", type=Path, metavar="BIN", help="binarized data, for batches of real text too")
    text = "trained models, for the claims trained-layers, gain-over-psi and assumption-two"
    add("--checkpoint", type=Path, nargs="+", default=(), metavar="FILE", help=text)
    add_user_dir(flags)
    return flags


def names(text: str) -> tuple[str, ...]:
    """Return the type of a list of names, separated by commas."""
    return tuple(name for name in text.split(",") if name)


def numbers(text: str) -> tuple[int, ...]:
    """Return the type of two or more distinct numbers from 1 on, separated by commas; sorted."""
    values = tuple(sorted(set(map(at_least(1), names(text)))))
    if len(values) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: give two numbers or more, as in 2,4,8")
    return values


def options_of(args: argparse.Namespace) -> Options:
    """Return the options of the claims; CommandError for an unknown name or bad data."""
    try:
        norm_spec(args.norm_type)
        for placement in args.placements:
            placement_class(placement)
    except ValueError as error:
        raise CommandError(str(error)) from error
    as_given = ("placements", "norm_type", "layers", "depth", "dim", "full_dim", "seeds", "data")
    return Options(
        main=tuple(p for p in args.placements if p in MAIN) or args.placements[:1],
        real=None if args.data is None else real_batches(args.data, args.seeds),
        checkpoints=tuple(args.checkpoint),
        **{name: getattr(args, name) for name in as_given},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = parser().parse_args(argv)
    # torch warns about the masks of fairseq's attention
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
    for name in ("norm_plugin", "fairseq"):
        logging.getLogger(name).setLevel(logging.WARNING)
    import_user_dir(args.user_dir)
    if unknown := [name for name in args.claims if name not in CLAIMS]:
        raise CommandError(f"there is no claim {unknown[0]!r}; choose from {', '.join(CLAIMS)}")
    options = options_of(args)
    made = origin(shlex.join([*COMMAND, *(sys.argv[1:] if argv is None else argv)]), options)
    make_folder(args.out, "--out")
    for name, rows in measure(args.claims, options).items():
        if rows:
            store(name, rows, made, args.out)
            draw(name, args.out)
            title, _, rest = CLAIMS[name].text.partition("\n")
            print(f"## {title.rstrip('.')}\n{rest}\n\n{block(name, args.out, args.out)}\n")
    return 0


def measure(claims: Sequence[str], options: Options) -> dict[str, list[Row]]:
    """Return the rows of each of these claims.

    All claims of a placement are measured together, as they share forward and backward passes.
    """
    rows = {name: list(CLAIMS[name].measure_once(options)) for name in claims}
    for placement in options.placements:
        for name in claims:
            rows[name] += CLAIMS[name].measure(options, placement)
        print(f"measured {placement}", file=sys.stderr, flush=True)
    return rows


# Files


def origin(command: str, options: Options) -> Row:
    """Return the origin of measurements for ``made.json``: command, settings, commit, versions."""
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
    """Return a corpus's name and checksum from its manifest, or else the name of the folder."""
    path = data.parent / "manifest.json"
    manifest = read_json(path) if path.is_file() else {}
    corpus, checksum = manifest.get("corpus", data.name), str(manifest.get("checksum", ""))
    return f"{corpus} {checksum[:16]}".strip()


def store(name: str, rows: list[Row], made: Row, folder: Path) -> None:
    """Write the measurements of a claim and their origin; this replaces older ones."""
    frame = pd.DataFrame(rows)
    text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(folder / f"{name}.csv", text)
    entries = {**read_made(folder), name: made}
    write_text(folder / MADE, json.dumps(entries, indent=2, sort_keys=True) + "\n")


def read_made(folder: Path) -> dict[str, Any]:
    """Return the origin of the measurements of each claim in ``folder``, by its name."""
    path = folder / MADE
    return dict(read_json(path)) if path.exists() else {}


def read_measurements(name: str, folder: Path) -> pd.DataFrame:
    """Read what :func:`store` has written; only empty cells and ``nan`` are missing values."""
    return pd.read_csv(folder / f"{name}.csv", keep_default_na=False, na_values=["", "nan"])


# The page


def draw(name: str, folder: Path) -> None:
    """Draw the figure of a claim that has one from its measurements in ``folder``."""
    claim = CLAIMS[name]
    if claim.plot is not None:
        finite, _ = finite_cases(claim, read_measurements(name, folder))
        plot = partial(claim.plot, finite) if len(finite) else lambda axes: None
        figure = Figure(name, claim.caption, finite, plot, height=3.6)
        write_text(folder / f"{name}.svg", figure.standalone)


def block(name: str, folder: Path, page: Path) -> str:
    """Return the tables of a claim in Markdown, from its measurements in ``folder``.

    Args:
        page: the folder of the page, from which links are relative.
    """
    claim, made = CLAIMS[name], read_made(folder)[name]
    finite, left_out = finite_cases(claim, read_measurements(name, folder))
    tables = [pd.DataFrame([*left_out, *(claim.verdicts(finite) if len(finite) else [])])]
    tables += claim.tables(finite) if len(finite) else []
    numbers = ", ".join(f"{key} {value}" for key, value in made["versions"].items() if value)
    settings = ", ".join(f"{key} {value}" for key, value in made["settings"].items())
    to_folder = Path(os.path.relpath(folder, page)).as_posix()
    figure = f"![{claim.caption}]({to_folder}/{name}.svg)\n\n{claim.caption} " * bool(claim.plot)
    return "\n\n".join(
        [
            *(markdown(cells(table)) for table in tables),
            f"{figure}Data: [{name}.csv]({to_folder}/{name}.csv).",
            f"Measured on {made['date']} at commit {short_commit(made['git'])} by "
            f"`{made['command']}` ({settings}; {numbers}).",
        ]
    )


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with titles, ``holds`` as last column, and no empty column of intervals."""
    table = table.astype(object).fillna("").rename(columns=SHOWN)
    if "holds" in table:
        table = table[[*table.columns.drop("holds"), "holds"]]
        table = table.drop(columns=INTERVAL) if table[INTERVAL].isin(["-", ""]).all() else table
    return table
