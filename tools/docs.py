#!/usr/bin/env python3
"""Fill the generated blocks of README.md and docs/*.md.

    python tools/docs.py             write them anew
    python tools/docs.py --check     change nothing, exit 1 where one is stale

A block is what stands between <!-- begin:NAME --> and <!-- end:NAME -->.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# whose rows are what the tables of speed show
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from blocks import Generators, fill
from claims import CONTROLS, claims_table, reproduction_table
from declared_tables import (
    front_table,
    norms_table,
    options_table,
    patches_table,
    placements_table,
    placements_text,
    sites_table,
)
from example_runs import example_table
from norm_plugin.analysis.deep_stacks_page import deep_stacks_block
from norm_plugin.analysis.theory import CLAIMS
from norm_plugin.analysis.theory.claim import sections
from norm_plugin.analysis.warmup import published_table as warmup_table
from norm_plugin.commands.command_line import CommandError, read_text, run_command, write_text
from norm_plugin.experiments.results import read_results
from norm_plugin.experiments.tables import score_table
from powernorm_parts import parts_table
from published import published_table
from recipe_commands import command_lines
from speed_tables import speed_table

ROOT = Path(__file__).resolve().parents[1]


def fill_docs(root: Path, check: bool) -> list[Path]:
    """Write the blocks of the documentation in ``root`` anew, or only ``check``.

    Returns the files that were stale: of README.md and docs/*.md.
    """
    stale = []
    blocks = generators(root)
    for path in [root / "README.md", *sorted(root.glob("docs/*.md"))]:
        old = read_text(path)
        new = fill(old, blocks)
        if new != old:
            stale.append(path)
            if not check:
                write_text(path, new)
    return stale


def generators(root: Path) -> Generators:
    """What fills the blocks of the documentation in ``root``, by the name of the block."""
    return {
        "results/": lambda name: score_table(read_results(root / name)),
        "reproduction/": lambda name: reproduction_table(name.partition("/")[2], root / "results"),
        "claims/": lambda name: claims_table(name.partition("/")[2], root / "results"),
        "controls/": lambda name: claims_table(name.partition("/")[2], root / "results", CONTROLS),
        "parts/": lambda name: parts_table(root / "results" / name.partition("/")[2]),
        "published/": lambda name: published_table(name.partition("/")[2], root / "results"),
        "speed/": lambda name: speed_table(name.partition("/")[2], root),
        "examples/": lambda name: example_table(name.partition("/")[2], root),
        "command/": lambda name: command_lines(name.partition("/")[2]),
        "front/": lambda name: front_table(name.partition("/")[2].split(",")),
        "deep-stacks/": lambda name: deep_stacks_block(
            name.partition("/")[2], root / "results" / "deep_stacks"
        ),
        "warmup": lambda _: warmup_table(root / "results" / "warmup" / "multi30k_cpu"),
        "theory": lambda _: sections(CLAIMS, root / "results" / "theory", "../results/theory"),
        "norms": lambda _: norms_table(),
        "options": lambda _: options_table(),
        "sites": lambda _: sites_table(),
        "patches": lambda _: patches_table(),
        "placements": lambda _: placements_table(),
        "placement-sections": lambda _: placements_text(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/docs.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=ROOT,
        metavar="DIR",
        help="the folder of README.md, docs/ and results/ (default: this checkout)",
    )
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    args = parser.parse_args(argv)
    stale = fill_docs(args.root.resolve(), args.check)
    if stale and args.check:
        names = ", ".join(path.name for path in stale)
        raise CommandError(f"stale: {names}; run python tools/docs.py")
    return 0


if __name__ == "__main__":
    run_command(main)
