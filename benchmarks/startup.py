#!/usr/bin/env python3
"""Measure the CPU seconds of every command of ``norm-plugin`` that trains nothing.

    python benchmarks/startup.py
    git worktree add /tmp/before COMMIT && python benchmarks/startup.py /tmp/before .

Each checkout is a column. A value is the time of the process in user and system mode, the least of
--repeats. The table in docs/speed.md comes from here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.cli import all_verbs

COMMANDS = {
    "`--version`": "--version",
    "`list`": "list",
    "a wrong experiment": "sweep toyy",
    "a wrong key": "sweep toy nrom=layernorm",
    "a wrong key of a setting": "sweep toy optimization.lrr=1",
    "a wrong key of a norm": "sweep toy model.norm_typ=rmsnorm",
    "a wrong norm": "sweep toy norm=layernrom",
    "a wrong flag": "sweep toy --job 2",
    "a wrong seed": "sweep toy seed=a",
    "`study` of nothing": "study nosuch",
    "`report` of nothing": "report nosuch",
    "`average` of nothing": "average --inputs nosuch --last-epochs 3 --output averaged.pt",
    "`status` of an experiment": "status toy --work WORK",
    "`status` of a study": "status encoder_norms --work WORK",
    "`run --dry-run`": "run toy --dry-run --work WORK",
    "`sweep --dry-run` of 34 runs": "sweep multi30k_powernorm --dry-run --work WORK",
    "`study --dry-run`": "study toy_tuned --dry-run --work WORK",
}
"""What is measured, and its command line; WORK is an empty folder."""


def cpu_seconds(checkout: Path, argv: Sequence[str], repeats: int) -> float:
    """Return the least CPU time of a command of a checkout."""
    return min(_once(checkout, argv) for _ in range(repeats))


def _once(checkout: Path, argv: Sequence[str]) -> float:
    process = subprocess.Popen(
        [sys.executable, "-m", "norm_plugin", *argv],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print a row for each command, and for the slowest help of a verb."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = Path(__file__).resolve().parents[1]
    text = "checkouts with an environment in common (default: this one)"
    parser.add_argument("checkouts", nargs="*", type=Path, default=[root], help=text)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: %(default)s")
    args = parser.parse_args()
    checkouts = args.checkouts
    print(f"| CPU seconds | {' | '.join(path.resolve().name for path in checkouts)} |")
    print(f"| --- |{' ---: |' * len(checkouts)}")
    helps = [[name, "--help"] for name, verb in all_verbs().items() if verb.help]
    slowest = [max(cpu_seconds(path, argv, args.repeats) for argv in helps) for path in checkouts]
    _print_row(f"`--help`, the slowest of {len(helps)} verbs", slowest)
    with tempfile.TemporaryDirectory() as work:
        for name, command in COMMANDS.items():
            argv = [work if word == "WORK" else word for word in command.split()]
            _print_row(name, [cpu_seconds(path, argv, args.repeats) for path in checkouts])


def _print_row(name: str, values: Sequence[float]) -> None:
    print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |", flush=True)


if __name__ == "__main__":
    main()
