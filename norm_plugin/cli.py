"""The command ``norm-plugin VERB``, also ``python -m norm_plugin VERB``.

The lab adds its verbs if it is installed. Nothing else of the plugin refers to it.

Only the standard library is imported here. A verb imports its module when it is called, after its
parser, if that is apart, has read the command line. So help and wrong flags answer at once, and
``--help`` of a script works before the environment exists.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from norm_plugin import __version__
from norm_plugin.io.command_line import (
    CommandError,
    Parser,
    UsageError,
    did_you_mean,
    hide_warnings,
    run_command,
)

if TYPE_CHECKING:
    from norm_plugin.declarations.option import NormDeclaration

LAB = "norm_lab"
"""The package that adds verbs, if present: not beside a mere copy of the plugin."""
COMPARE, CHECKPOINTS = "Compare norms", "Work with checkpoints"
EVALUATE, LOOK = "Evaluate a model", "Look something up"
GROUPS = (COMPARE, CHECKPOINTS, EVALUATE, LOOK)
"""The groups of verbs in the help, in order."""


class Verb(NamedTuple):
    """A verb of the command.

    Attributes:
        target: its module, and after a colon its function unless that is ``main``.
        help: one line; empty for a verb that only programs call, which the help does not list.
        group: one of :data:`GROUPS`.
        parser: the module and function of its parser, if its module takes long to import.
    """

    target: str
    help: str
    group: str = ""
    parser: str = ""


PARSERS = "norm_plugin.checkpoints.parsers"
VERBS = {
    "average": Verb(
        "norm_plugin.checkpoints.average",
        "average checkpoints",
        CHECKPOINTS,
        f"{PARSERS}:average_parser",
    ),
    "fold": Verb(
        "norm_plugin.checkpoints.fold",
        "fold norms into the linear maps that follow",
        CHECKPOINTS,
        f"{PARSERS}:fold_parser",
    ),
    "repair": Verb(
        "norm_plugin.checkpoints.repair",
        "replace a damaged last checkpoint",
        CHECKPOINTS,
        f"{PARSERS}:repair_parser",
    ),
    "predict": Verb("norm_plugin.checkpoints.predict", "predict the labels of a split", EVALUATE),
    "evaluate-lm": Verb(
        "norm_plugin.checkpoints.evaluate_lm", "compute a language model's loss", EVALUATE
    ),
    "list": Verb(
        "norm_plugin.cli:list_norms", "print every norm with its options and its paper", LOOK
    ),
    "path": Verb("norm_plugin.cli:path", "print the path for fairseq's --user-dir", LOOK),
    "check-user-dir": Verb(
        "norm_plugin.cli:check_user_dir", "check the norms and placements of a user dir", LOOK
    ),
}
NO_EXTRA = "install norm_plugin with the extras fairseq and analysis: docs/installation.md"


def all_verbs() -> dict[str, Verb]:
    """Return the verbs of the lab, if present, and those of the plugin."""
    if find_spec(LAB) is None:
        return VERBS
    return {**import_module(f"{LAB}.verbs").VERBS, **VERBS}


def usage() -> str:
    """Return the help: the verbs by group, one line each."""
    verbs = all_verbs()
    width = max(len(name) for name, verb in verbs.items() if verb.help)
    lines = []
    for group in GROUPS:
        of_group = {name: verb for name, verb in verbs.items() if verb.group == group}
        if of_group:
            lines += ["", f"{group}:"]
            lines += [f"  {name:<{width}}  {verb.help}" for name, verb in of_group.items()]
    end = "`norm-plugin VERB --help` explains a verb. `python -m norm_plugin VERB` is the same."
    return "\n".join(["usage: norm-plugin VERB ... | --version", *lines, "", end])


def call(name: str, argv: Sequence[str]) -> int:
    """Run a verb, and return its exit status.

    Raises:
        CommandError: the verb is unknown, or failed.
    """
    verbs = all_verbs()
    if name not in verbs:
        shown = [each for each, verb in verbs.items() if verb.help]
        raise UsageError(f"unknown command {name}; {did_you_mean(name, shown)}")
    verb = verbs[name]
    try:
        if verb.parser:
            _function(verb.parser)().parse_args(list(argv))
        status: int = _function(verb.target)(argv)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("norm_"):
            raise
        raise CommandError(f"{error.name} is missing; {NO_EXTRA}") from error
    return status


def _function(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function or "main")


def list_norms(argv: Sequence[str]) -> int:
    """Print every norm, its options and its paper, and the flags of sites."""
    Parser(
        prog="norm-plugin list",
        description="Print every norm, its options and its paper, and the flags of sites.",
        example="norm-plugin list | less",
    ).parse_args(argv)
    from norm_plugin.declarations.flags import site_flags
    from norm_plugin.declarations.reading import read_norms

    print("\n\n".join(map(norm_text, read_norms().values())))
    if find_spec("fairseq") is not None:  # an installation for plain torch has no sites
        print("\nsites")
        for flag, text in site_flags():
            print(f"    {flag}: {text}")
    return 0


def norm_text(norm: NormDeclaration) -> str:
    """Return the name, formula, paper and options of a norm as text."""
    lines = [norm.name, f"    {norm.formula}", f"    {norm.paper}"]
    if norm.released:
        lines.append(f"    its released code: {norm.released}")
    for option in norm.options:
        kind = f"{option.type_name}, default {option.default}"
        lines.append(f"    {option.flag} ({kind}): {option.help}")
    return "\n".join(lines)


def path(argv: Sequence[str]) -> int:
    """Print the folder to give to fairseq's ``--user-dir``."""
    Parser(
        prog="norm-plugin path",
        description="Print the path for fairseq's --user-dir.",
        example='fairseq-train --user-dir "$(norm-plugin path)" --norm-type powernorm ...',
    ).parse_args(argv)
    print(Path(__file__).resolve().parent)
    return 0


def check_user_dir(argv: Sequence[str]) -> int:
    """Print the result of each check of a user dir; raise CommandError if one fails."""
    parser = Parser(
        prog="norm-plugin check-user-dir",
        description="Check the norms and the placements that a --user-dir registers, and print a\n"
        "line for each check. The exit status is 1 if one fails.",
        example="norm-plugin check-user-dir my_norms",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --user-dir")
    args = parser.parse_args(argv)
    from norm_plugin.checks.user_dir import run_checks

    passed = []
    for line, good in run_checks(args.folder):
        print(line, flush=True)
        passed.append(good)
    if not all(passed):
        raise CommandError(f"{passed.count(False)} of {len(passed)} checks failed")
    return 0


def main(argv: Sequence[str] | None = None, default: Sequence[str] = ("--help",)) -> int:
    """Run the command line; raise CommandError if it fails.

    Args:
        default: what an empty command line means.
    """
    verb, *arguments = (sys.argv[1:] if argv is None else argv) or default
    for argument in (verb, *arguments):
        if any("\udc80" <= letter <= "\udcff" for letter in argument):  # Python's, for other bytes
            raise CommandError(f"the argument {argument!r} is not UTF-8; rename the file")
    if verb in ("-h", "--help"):
        print(usage())
        return 0
    if verb == "--version":
        print(f"norm_plugin {__version__}")
        return 0
    hide_warnings()
    return call(verb, arguments)


def run(argv: Sequence[str] | None = None, default: Sequence[str] = ("--help",)) -> None:
    """Run the command line as :func:`main`, and exit with its status."""
    run_command(partial(main, argv, default))
