"""The hydra group ``norm``: a file for each norm, made from its declaration.

    python -m norm_plugin.norm_configs            write configs/norm/<norm>.yaml anew
    python -m norm_plugin.norm_configs --check    change nothing, exit 1 when one is stale

A file lists every option of its norm, and ``norm_init`` and the like, since hydra takes an override
only of a key that is there: ``norm=powernorm model.norm_alpha_fwd=0.95``. A null leaves the option
at its default.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from norm_plugin.commands.command_line import ending_with_the_reader
from norm_plugin.experiments.recipes import CONFIGS
from norm_plugin.norms import NORM_TYPES, norm_spec

HEAD = """# @package model
# Made by python -m norm_plugin.norm_configs
# {formula}
norm_type: {name}
"""


def norm_config(name: str) -> str:
    """The file of a norm: its name, and a null for each of its options and of the model's own."""
    from norm_plugin.models.flags import CHOICES, VALUES

    spec = norm_spec(name)
    text = HEAD.format(formula=spec.formula, name="'none'" if name == "none" else name)
    lines = [f"norm_{option.name}: null  # {option.default}\n" for option in spec.options]
    lines += [
        f"{key}: null  # {choice.default}\n"
        for key, choice in CHOICES.items()
        if choice.default is not None  # the placement is the recipe's
    ]
    lines += [f"{key}: null\n" for key in VALUES]
    return text + "".join(lines)


def stale_configs(folder: Path) -> dict[Path, str]:
    """The files of ``folder`` that are not as they should be, with the text that they should hold.

    An empty text stands for a file of a norm that is no more.
    """
    wanted = {folder / f"{name}.yaml": norm_config(name) for name in NORM_TYPES}
    wanted.update({path: "" for path in folder.glob("*.yaml") if path not in wanted})
    return {
        path: text
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def write_configs(stale: dict[Path, str]) -> None:
    """Write what :func:`stale_configs` found, each file whole or not at all."""
    for path, text in stale.items():
        if text:
            new = path.with_name(path.name + ".tmp")
            new.write_text(text, encoding="utf-8")
            os.replace(new, path)
        else:
            path.unlink()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin.norm_configs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    args = parser.parse_args()
    stale = stale_configs(CONFIGS / "norm")
    if not args.check:
        write_configs(stale)
    elif stale:
        names = ", ".join(sorted(path.name for path in stale))
        sys.exit(f"error: {names} of configs/norm stale: run python -m norm_plugin.norm_configs")


if __name__ == "__main__":
    with ending_with_the_reader():
        main()
