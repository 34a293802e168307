"""The whole path on the embedded toy corpus for several norms, and a table."""

from __future__ import annotations

import argparse
import os

from norm_plugin.experiments.console import Console
from norm_plugin.experiments.done import print_plan
from norm_plugin.experiments.plan import make_plan
from norm_plugin.experiments.results import read_results
from norm_plugin.experiments.run import execute
from norm_plugin.experiments.settings import read_settings
from norm_plugin.experiments.tables import score_table

NORMS = ("layernorm", "adanorm", "powernorm", "none")


def main(args: argparse.Namespace) -> int:
    """The command ``demo``."""
    norms = [args.norm] if args.norm else NORMS
    # All are checked first: flags may suit one norm and not the next.
    plans = [
        make_plan(read_settings(argparse.Namespace(**{**vars(args), "norm": norm})))
        for norm in norms
    ]
    for plan in plans:
        if args.dry_run:
            print_plan(plan)
        else:
            execute(plan, Console(plan.name), os.environ)
    if not args.dry_run:
        results = plans[0].result.parent
        print(f"\n{score_table(read_results(results))}")
        print(
            "\nOne seed on a toy corpus: it shows that everything runs, not which norm is better."
        )
        print(f"Checkpoints and translations: {plans[0].folder.parent}\nResults: {results}")
    return 0
