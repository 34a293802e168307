"""``python -m norm_plugin``: the folder to give to ``--user-dir``; ``--list``: every norm."""

from __future__ import annotations

import argparse
import os

from norm_plugin.norms import NORM_TYPES, norm_spec


def describe_norm(name: str) -> str:
    """Name, formula and paper of a norm, and a line for each of its options."""
    spec = norm_spec(name)
    lines = [name, f"    {spec.formula}", f"    {spec.paper}"]
    for option in spec.options:
        flag = "--norm-" + option.name.replace("_", "-")
        lines.append(f"    {flag} {option.type_name} (default {option.default}): {option.help}")
    return "\n".join(lines)


def main() -> None:
    """Print the folder of the plugin, or what it offers."""
    parser = argparse.ArgumentParser(prog="python -m norm_plugin", description=__doc__)
    parser.add_argument("--list", action="store_true", help="every norm, its options, its paper")
    if parser.parse_args().list:
        print("\n\n".join(describe_norm(name) for name in NORM_TYPES))
    else:
        print(os.path.dirname(os.path.abspath(__file__)))


if __name__ == "__main__":
    main()
