"""``python -m norm_plugin`` prints the folder to give to ``--user-dir``.

``--list`` prints every norm instead, and ``--check DIR`` checks the norms and the placements of a
user dir.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from norm_plugin.commands.command_line import ending_with_the_reader
from norm_plugin.commands.listing import norm_text, sites_text
from norm_plugin.commands.user_dir_checks import run_checks
from norm_plugin.norms import NORM_TYPES


def main() -> None:
    """Print the folder of the plugin, or what it offers."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin",
        description="Print the folder to give to fairseq's --user-dir.",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--list",
        action="store_true",
        help="print every norm, its options and its paper, and the flags of sites instead",
    )
    instead.add_argument(
        "--check",
        metavar="DIR",
        type=Path,
        help="check the norms and the placements that a --user-dir registers and print a line for "
        "each check; the status is 1 if one fails",
    )
    args = parser.parse_args()
    if args.list:
        parts = list(map(norm_text, NORM_TYPES))
        if importlib.util.find_spec("fairseq") is not None:  # without it there are norms alone
            from norm_plugin.models.config import site_flags

            parts.append(sites_text(site_flags()))
        print("\n\n".join(parts))
    elif args.check is not None:
        check_user_dir(args.check)
    else:
        print(os.path.dirname(os.path.abspath(__file__)))


def check_user_dir(user_dir: Path) -> None:
    """Print the outcome of each check of what is in ``user_dir``; exit 1 if one fails."""
    passed = []
    try:
        for line, good in run_checks(user_dir):
            print(line, flush=True)
            passed.append(good)
    except ValueError as error:
        sys.exit(f"error: {error}")
    if not all(passed):
        sys.exit(f"error: {passed.count(False)} of {len(passed)} checks failed")


if __name__ == "__main__":
    with ending_with_the_reader():
        main()
