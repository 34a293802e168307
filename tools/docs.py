#!/usr/bin/env python3
"""Fill the generated blocks of docs/*.md from declarations and benchmarks.

python tools/docs.py             write them
python tools/docs.py --check     change nothing, exit with 1 if one is stale
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# for the rows of the speed tables
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from declared_tables import (
    field_commands_table,
    norms_table,
    options_table,
    patches_table,
    placement_norms_table,
    placements_table,
    sites_table,
)
from norm_lab.report.blocks import Generators, fill_command, fill_pages
from norm_plugin.io.command_line import run_command
from speed_tables import speed_table

ROOT = Path(__file__).resolve().parents[1]


def fill_docs(root: Path, check: bool) -> list[Path]:
    """Write the blocks of the documentation in ``root``, or only check them.

    Returns:
        The stale files.
    """
    return fill_pages(sorted(root.glob("docs/*.md")), generators(root), check)


def generators(root: Path) -> Generators:
    """Return the functions that fill the blocks of the documentation in ``root``."""
    commands = root / "tests" / "models" / "field_commands.yaml"
    return {
        "speed/": lambda name: speed_table(name, root),
        "norms": lambda _: norms_table(),
        "options": lambda _: options_table(),
        "sites": lambda _: sites_table(),
        "patches": lambda _: patches_table(),
        "field-commands": lambda _: field_commands_table(commands),
        "placements": lambda _: placements_table(),
        "placement-norms": lambda _: placement_norms_table(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python tools/docs.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return fill_command(argv, parser, ROOT, fill_docs)


if __name__ == "__main__":
    run_command(main)
