"""Fill the generated blocks of papers/*.md, studies/README.md and studies/mnist/README.md.

Draw the figures of papers/ whose tables have changed.

    python -m papers             write them
    python -m papers --check     change nothing, exit with 1 if one is stale
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from norm_lab.paths import ROOT
from norm_lab.report.blocks import Generators, fill_command, fill_pages
from norm_lab.report.score_table import score_table
from norm_lab.results.table import read_results
from norm_plugin.io.command_line import run_command
from norm_plugin.io.files import write_text
from papers.across import across_table, epochs_table, stability_table
from papers.audit import finding_lines
from papers.example_runs import comparisons_table, example_table
from papers.findings import finding_block, stale_figures
from papers.scores import (
    layer_gradients_table,
    perplexity_table,
    recorded_figures_table,
    reproduction_table,
    scores_table,
)
from papers.settings import settings_tables
from papers.summary import norm_table, rates_table, studies_table
from papers.theory.page import block as theory_block
from papers.verdicts import own_setting_counts, paper_table, verdict_counts


def fill_papers(root: Path, check: bool) -> list[Path]:
    """Write the blocks of the pages in ``root``, or only check them.

    Returns:
        The stale files.
    """
    studies = [root / "studies" / name for name in ("README.md", "mnist/README.md")]
    pages = [*studies, *sorted(root.glob("papers/*.md"))]
    figures = stale_figures(root / "papers", root / "studies")
    if not check:
        for path, text in figures.items():
            write_text(path, text)
    return [*fill_pages(pages, generators(root), check), *figures]


def generators(root: Path) -> Generators:
    """Return the functions that fill the blocks of the pages in ``root``."""
    studies, data = root / "studies", root / "papers" / "data"
    return {
        "studies": lambda _: studies_table(studies),
        "studies/": lambda name: score_table(read_results(studies / name)),
        "reproduction/": lambda name: reproduction_table(name, studies),
        "finding/": lambda name: finding_block(name, studies),
        "across/": lambda name: across_table(name, studies),
        "epochs/": lambda name: epochs_table(name, studies),
        "stability/": lambda name: stability_table(name, studies),
        "norm-table": lambda _: norm_table(root),
        "highest-rates": lambda _: rates_table(studies),
        "recorded/": lambda name: recorded_figures_table(studies / name),
        "examples/": lambda name: example_table(name, root),
        "comparisons/": lambda name: comparisons_table(name, root),
        "layers/": lambda name: layer_gradients_table(studies / name),
        "theory/": lambda name: theory_block(name, data / "theory", root / "papers"),
        "audit/": finding_lines,
        "papers/": lambda paper: paper_table(paper, studies),
        "verdicts": lambda _: verdict_counts(studies),
        "own-settings": lambda _: own_setting_counts(studies),
        "scores/": lambda paper: scores_table(paper, studies),
        "perplexities": lambda _: perplexity_table(studies),
        "settings": lambda _: settings_tables(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return fill_command(argv, parser, ROOT, fill_papers)


if __name__ == "__main__":
    run_command(main)
