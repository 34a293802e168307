"""The hydra group ``norm``: a file for each norm, made from its declaration.

    python tools/norm_configs.py            write configs/norm/<norm>.yaml anew
    python tools/norm_configs.py --check    change nothing, exit 1 if a file is stale

A file lists every option of its norm, and ``norm_init`` and the like: hydra overrides only keys
that exist, as in ``norm=powernorm model.norm_alpha_fwd=0.95``. A null leaves an option at its
default.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.commands.command_line import CommandError, run_command, write_text
from norm_plugin.experiments.recipes import CONFIGS
from norm_plugin.models.flags import CHOICES, VALUES
from norm_plugin.norms import NORM_TYPES, norm_spec

HEAD = """# @package model
# Made by python tools/norm_configs.py
# {formula}
norm_type: {name}
"""


def norm_config(name: str) -> str:
    """The file of a norm: its name, and a null for each of its options and of the model's own."""
    spec = norm_spec(name)
    text = HEAD.format(formula=spec.formula, name=name)
    lines = [f"norm_{option.name}: null  # {option.default}\n" for option in spec.options]
    lines += [
        f"{key}: null  # {choice.default}\n"
        for key, choice in CHOICES.items()
        if choice.default is not None  # the placement is the recipe's
    ]
    lines += [f"{key}: null\n" for key in VALUES]
    return text + "".join(lines)


def stale_configs(folder: Path) -> dict[Path, str]:
    """The stale files of ``folder``, with the text that they should hold.

    An empty text stands for the file of a norm that no longer exists.
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
            write_text(path, text)
        else:
            path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/norm_configs.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    args = parser.parse_args(argv)
    stale = stale_configs(CONFIGS / "norm")
    if stale and args.check:
        names = ", ".join(sorted(path.name for path in stale))
        raise CommandError(f"stale in configs/norm: {names}; run python tools/norm_configs.py")
    write_configs(stale)
    return 0


if __name__ == "__main__":
    run_command(main)
