"""The command ``norm-plugin VERB``, also ``python -m norm_plugin VERB``.

The lab adds its verbs if it is installed. Nothing else of the plugin refers to it.

Only the standard library is imported here. A verb imports its module when it is called, so that
``--help`` of a script works before the environment exists, and each command imports only what it
needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap

from norm_plugin.io.command_line import CommandError, hide_warnings, run_command

LAB = "norm_lab"
"""The package that adds verbs, if present: it is in the checkout, but not in a wheel."""
VERBS = {
    "average": ("norm_plugin.checkpoints.average", "average checkpoints"),
    "fold": ("norm_plugin.checkpoints.fold", "fold norms into the linear maps that follow"),
    "repair": ("norm_plugin.checkpoints.repair", "replace a damaged last checkpoint"),
    "predict": ("norm_plugin.checkpoints.predict", "predict the labels of a split"),
    "evaluate-lm": ("norm_plugin.checkpoints.evaluate_lm", "compute a language model's loss"),
    "list": ("norm_plugin.cli:list_norms", "print every norm with its options and its paper"),
    "check-user-dir": (
        "norm_plugin.cli:check_user_dir",
        "check the norms and placements of a user dir",
    ),
}
"""The module of each verb, its function unless that is ``main``, and its help.

A verb without help is called by programs only, and is not listed in the help of the command.
"""
NO_LAB = (
    "the verbs that train, score and compare models are in the checkout of norm_plugin: clone it, "
    "run its scripts/setup.sh and call its .venv/bin/norm-plugin"
)


def all_verbs() -> dict[str, tuple[str, str]]:
    """Return the verbs of the lab, if present, and those of the plugin, as in :data:`VERBS`."""
    if find_spec(LAB) is None:
        return VERBS
    return {**import_module(f"{LAB}.verbs").VERBS, **VERBS}


def usage() -> str:
    """Return the help: one line per verb."""
    shown = {verb: text for verb, (_, text) in all_verbs().items() if text}
    width = max(map(len, shown))
    lines = [f"  {verb:<{width}}  {text}" for verb, text in shown.items()]
    lines += [] if find_spec(LAB) else ["", *wrap(f"{NO_LAB[0].upper()}{NO_LAB[1:]}.", 90)]
    return "\n".join(
        [
            "usage: norm-plugin VERB ...",
            "",
            *lines,
            "",
            "Each has --help. `python -m norm_plugin VERB` is the same. Without a verb, it prints",
            "the path for fairseq's --user-dir.",
        ]
    )


def call(verb: str, argv: Sequence[str]) -> int:
    """Run a verb, and return its exit status.

    Raises:
        CommandError: the verb is unknown, or failed.
    """
    verbs = all_verbs()
    if verb not in verbs:
        known = ", ".join(name for name, (_, text) in verbs.items() if text)
        hint = "" if find_spec(LAB) else f"; {NO_LAB}"
        raise CommandError(f"unknown command {verb}; choose from {known}{hint}")
    module, _, function = verbs[verb][0].partition(":")
    status: int = getattr(import_module(module), function or "main")(argv)
    return status


def list_norms(argv: Sequence[str]) -> int:
    """Print every norm, its options and its paper, and the flags of sites."""
    argparse.ArgumentParser(
        prog="norm-plugin list",
        description="Print every norm, its options and its paper, and the flags of sites.",
    ).parse_args(argv)
    from norm_plugin.norms import NORM_TYPES

    print("\n\n".join(map(norm_text, NORM_TYPES)))
    if find_spec("fairseq") is not None:  # an installation for plain torch has no sites
        from norm_plugin.models.config import site_flags

        print("\nsites")
        for flag, text in site_flags():
            print(f"    {flag}: {text}")
    return 0


def norm_text(name: str) -> str:
    """Return the name, formula, paper and options of a norm as text."""
    from norm_plugin.norms import norm_spec

    spec = norm_spec(name)
    lines = [name, f"    {spec.formula}", f"    {spec.paper}"]
    if spec.released:
        lines.append(f"    its released code: {spec.released}")
    for option in spec.options:
        kind = f"{option.type_name}, default {option.default}"
        lines.append(f"    {option.flag} ({kind}): {option.help}")
    return "\n".join(lines)


def check_user_dir(argv: Sequence[str]) -> int:
    """Print the result of each check of a user dir; raise CommandError if one fails."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin check-user-dir",
        description="Check the norms and the placements that a --user-dir registers, and print a "
        "line for each check. The exit status is 1 if one fails.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --user-dir")
    args = parser.parse_args(argv)
    from norm_plugin.checks.user_dir import run_checks

    passed = []
    try:
        for line, good in run_checks(args.folder):
            print(line, flush=True)
            passed.append(good)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not all(passed):
        raise CommandError(f"{passed.count(False)} of {len(passed)} checks failed")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; raise CommandError if it fails."""
    verb, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if verb and verb not in ("-h", "--help"):
        hide_warnings()
        return call(verb, arguments)
    print(usage() if verb else Path(__file__).resolve().parent)
    return 0


def run(argv: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its status."""
    run_command(partial(main, argv))
