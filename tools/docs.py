#!/usr/bin/env python3
"""Fill the generated blocks of README.md, docs/*.md and papers/*.md.

    python tools/docs.py             write them
    python tools/docs.py --check     change nothing, exit with 1 if one is stale

A block is the text between <!-- begin:NAME --> and <!-- end:NAME -->.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

# for the rows of the speed tables
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from papers.audit import finding_lines
from declared_tables import (
    field_commands_table,
    front_table,
    norms_table,
    options_table,
    patches_table,
    placements_table,
    placements_text,
    sites_table,
)
from papers.example_runs import example_table
from papers.findings import declared_table, finding_block
from papers.layer_gradients import layer_gradients_table
from norm_lab.report.score_table import score_table
from norm_lab.report.text import markdown
from norm_lab.results.table import read_results
from papers.theory.command import block as theory_block
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.io.files import read_text, write_text
from papers.claims import paper_table, verdict_counts
from papers.scores import (
    recorded_figures_table,
    reproduction_table,
    scores_table,
)
from recipe_commands import command_lines
from papers.settings import settings_tables
from speed_tables import speed_table
from papers.summary import costs_table, main_claims, norm_table

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"^<!-- (?:begin|end):.*", re.MULTILINE)
BLOCK = re.compile(r"^(<!-- begin:(.+?) -->\n)(.*?)(^<!-- end:\2 -->)$", re.MULTILINE | re.DOTALL)
Generators = dict[str, Callable[[str], str]]
"""The function that writes a block: by its name, or for ``kind/...`` by ``kind/``."""


def fill_docs(root: Path, check: bool) -> list[Path]:
    """Write the blocks of the documentation in ``root``, or only ``check`` them.

    Returns:
        The stale files.
    """
    stale = []
    blocks = generators(root)
    pages = [page for folder in ("docs", "docs/findings") for page in root.glob(f"{folder}/*.md")]
    for path in [root / "README.md", *sorted(pages)]:
        old = read_text(path)
        new = fill(old, blocks)
        if new != old:
            stale.append(path)
            if not check:
                write_text(path, new)
    return stale


def fill(text: str, generators: Generators) -> str:
    """Return ``text`` with every block rewritten; text outside blocks does not change.

    Raises:
        CommandError: a marker has no counterpart.
        KeyError: the name of a block is unknown.
    """

    def written(block: re.Match[str]) -> str:
        begin, name, _, end = block.groups()
        kind, slash, rest = name.partition("/")
        return begin + generators[kind + slash](rest).strip("\n") + "\n" + end

    markers, blocks = MARKER.findall(text), BLOCK.findall(text)
    if len(markers) != 2 * len(blocks):
        raise CommandError(f"begin and end markers do not alternate: {markers}")
    return BLOCK.sub(written, text)


def generators(root: Path) -> Generators:
    """Return the functions that fill the blocks of the documentation in ``root``."""
    results = root / "results"
    return {
        "results/": lambda name: score_table(read_results(results / name)),
        "reproduction/": lambda name: reproduction_table(name, results),
        "primary/": lambda name: declared_table(name, results),
        "finding/": lambda name: finding_block(name, results),
        "norm-table/": lambda count: norm_table(results, int(count)),
        "norm-table": lambda _: norm_table(results),
        "norm-costs": lambda _: costs_table(root),
        "main-claims": lambda _: main_claims(results),
        "inference": lambda _: inference_table(root),
        "recorded/": lambda name: recorded_figures_table(results / name),
        "speed/": lambda name: speed_table(name, root),
        "examples/": lambda name: example_table(name, root),
        "command/": command_lines,
        "front/": lambda names: front_table(names.split(",")),
        "layers/": lambda name: layer_gradients_table(results / name),
        "theory/": lambda name: theory_block(name, results / "theory", root / "docs"),
        "audit/": finding_lines,
        "papers/": lambda paper: paper_table(paper, results),
        "verdicts": lambda _: verdict_counts(results),
        "scores/": lambda paper: scores_table(paper, results),
        "settings": lambda _: settings_tables(),
        "norms": lambda _: norms_table(),
        "options": lambda _: options_table(),
        "sites": lambda _: sites_table(),
        "patches": lambda _: patches_table(),
        "field-commands": lambda _: field_commands_table(
            root / "tests" / "models" / "field_commands.yaml"
        ),
        "placements": lambda _: placements_table(),
        "placement-sections": lambda _: placements_text(),
    }


def inference_table(root: Path) -> str:
    """Return Markdown: the simulated size, power and coverage of our tests, in percent."""
    table = pd.read_csv(root / "benchmarks" / "results" / "inference.csv").drop(columns="draws")
    shares = table.columns[3:]
    table[shares] = (100 * table[shares]).map("{:.1f}".format)
    shown = table.astype(str).rename(columns={"Welch interval": "Welch's interval"})
    return markdown(shown, ["---", *["---:"] * (len(shown.columns) - 1)])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
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
