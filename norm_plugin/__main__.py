"""``python -m norm_plugin``: the folder to give to ``--user-dir``; ``--list``: every norm."""

from __future__ import annotations

import argparse
import importlib.util
import os

from norm_plugin.listing import norm_text, sites_text
from norm_plugin.norms import NORM_TYPES
from norm_plugin.pipes import ending_with_the_reader


def main() -> None:
    """Print the folder of the plugin, or what it offers."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin",
        description="Print the folder to give to fairseq's --user-dir.",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="print every norm, its options and its paper, and the flags of sites instead",
    )
    if parser.parse_args().list:
        parts = list(map(norm_text, NORM_TYPES))
        if importlib.util.find_spec("fairseq") is not None:  # without it there are norms alone
            parts.append(sites_text())
        print("\n\n".join(parts))
    else:
        print(os.path.dirname(os.path.abspath(__file__)))


if __name__ == "__main__":
    with ending_with_the_reader():
        main()
