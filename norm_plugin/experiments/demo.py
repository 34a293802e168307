"""The whole path on the embedded toy corpus for several norms, and a table."""

from __future__ import annotations

import argparse
import os
import subprocess

from norm_plugin.experiments import processes
from norm_plugin.experiments.console import Console
from norm_plugin.experiments.runner import execute, print_commands
from norm_plugin.experiments.spec import command_root, read_specs

NORMS = ("layernorm", "adanorm", "powernorm", "none")


def main(args: argparse.Namespace) -> int:
    """The command ``demo``."""
    args.norms = [args.norm] if args.norm else NORMS
    # All are checked first: flags may suit one norm and not the next.
    specs = read_specs(args).runs
    for spec in specs:
        if args.dry_run:
            print_commands(spec)
        else:
            execute(spec, Console(spec.name), os.environ)
    if not args.dry_run:
        results = specs[0].result.parent
        command = [*processes.PYTHON, "-m", "norm_plugin", "table", str(results)]
        table = subprocess.run(
            command, cwd=command_root(), stdout=subprocess.PIPE, text=True, check=True
        )
        print(
            f"\n{table.stdout}\n"
            "One seed on a toy corpus: it shows that everything runs, not which norm is better."
        )
        print(f"Checkpoints and translations: {specs[0].folder.parent}\nResults: {results}")
    return 0
