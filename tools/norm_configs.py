"""The hydra groups ``norm`` and ``placement``: one file per name, made from its declaration.

    python tools/norm_configs.py            write configs/norm/ and configs/placement/
    python tools/norm_configs.py --check    change nothing, exit with 1 if a file is stale

The file of a norm lists all of its options, ``norm_init`` and the like: hydra overrides only keys
that exist, as in ``norm=powernorm model.norm_alpha_fwd=0.95``. With null an option has its default.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from norm_lab.paths import CONFIGS
from norm_plugin.declarations.flags import CHOICES, PLACEMENT, VALUES
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.io.files import write_text
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.placements import PLACEMENTS, placement_class

HEAD = """# @package model
# Made by python tools/norm_configs.py
# {formula}
{key}: {name}
"""


def norm_config(name: str) -> str:
    """Return the file of a norm: its name, and null for each of its options and of the model's."""
    spec = norm_spec(name)
    text = HEAD.format(formula=spec.formula, key="norm_type", name=name)
    lines = [f"norm_{option.name}: null  # {option.default}\n" for option in spec.options]
    lines += [
        f"{key}: null" + (f"  # {choice.default}\n" if choice.default else "\n")
        for key, choice in CHOICES.items()
        if key != PLACEMENT  # it has a group of its own
    ]
    lines += [f"{key}: null\n" for key in VALUES]
    return text + "".join(lines)


def placement_config(name: str) -> str:
    """Return the file of a placement."""
    equation = placement_class(name).equation
    return HEAD.format(formula=equation, key="norm_placement", name=name)


GROUPS: dict[str, tuple[Iterable[str], Callable[[str], str]]] = {
    "norm": (NORM_TYPES, norm_config),
    "placement": (PLACEMENTS, placement_config),
}
"""The values of each group of YAML files, and the function that writes one file."""


def stale_configs(configs: Path) -> dict[Path, str]:
    """Return the stale files of the groups in ``configs``, with their correct text.

    An empty text means that the norm or placement no longer exists.
    """
    wanted = {}
    for group, (names, text) in GROUPS.items():
        wanted.update(dict.fromkeys((configs / group).glob("*.yaml"), ""))
        wanted.update({configs / group / f"{name}.yaml": text(name) for name in names})
    return {
        path: text
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def write_configs(stale: dict[Path, str]) -> None:
    """Write the files that :func:`stale_configs` returned, each atomically."""
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        write_text(path, text) if text else path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    stale = stale_configs(CONFIGS)
    if parser.parse_args(argv).check and stale:
        names = ", ".join(sorted(f"{path.parent.name}/{path.name}" for path in stale))
        raise CommandError(f"stale in configs/: {names}; run python tools/norm_configs.py")
    write_configs(stale)
    return 0


if __name__ == "__main__":
    run_command(main)
