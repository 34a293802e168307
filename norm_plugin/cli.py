"""The command ``norm-plugin VERB``, also ``python -m norm_plugin VERB``.

Only the standard library is imported here. A verb imports its module when it is called, so that
``--help`` of a script works before the environment exists, and a command pays for what it needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from norm_plugin.commands.command_line import CommandError, hide_warnings, run_command

VERBS = {
    "run": ("experiments.options:run", "one run, from raw text to a score"),
    "sweep": ("experiments.options:sweep", "a grid of runs, several at once"),
    "status": ("experiments.options:status", "the state of the runs of a sweep"),
    "tune": ("experiments.options:tune", "tune each arm of a study over a grid"),
    "study": ("analysis.whole_study", "tune, run and report a study"),
    "demo": ("experiments.options:demo", "train four norms on a toy corpus, and compare them"),
    "flags": ("experiments.recipes", "the hyperparameters of a recipe as flags of fairseq"),
    "report": ("analysis.report", "compare runs over seeds: a page with tables and figures"),
    "table": ("analysis.study", "the results of an experiment as a Markdown table"),
    "records": ("analysis.records", "the statistics of --norm-record, and the data of figures"),
    "spectrum": ("analysis.spectrum", "the singular values of the embeddings of checkpoints"),
    "theory": ("analysis.theory_command", "measure the claims of the papers"),
    "average": ("checkpoints.average", "average checkpoints"),
    "fold": ("checkpoints.fold", "fold norms into the linear maps after them"),
    "repair": ("checkpoints.repair", "replace a damaged last checkpoint"),
    "predict": ("experiments.metrics.accuracy", "the labels of a split by a trained classifier"),
    "evaluate-lm": (
        "experiments.metrics.language_model",
        "the loss of a language model",
    ),
    "score": ("experiments.metrics.bleu", "BLEU of the output of fairseq-generate"),
    "result": ("experiments.results:result_command", "write the result of a finished training"),
    "publish": (
        "experiments.publishing:publish_command",
        "store the results of an experiment as one table of runs",
    ),
    "list": ("cli:list_norms", "every norm with its options and its paper"),
    "check": ("cli:check_norms", "check the norms and placements of a user dir"),
    "stages": ("experiments.runner", "several stages of a run in one process"),
    "compose": ("experiments.compose", "the runs of a command line of run or sweep, as JSON"),
    "job": ("experiments.options:job", "one run of a sweep, from the file of its spec"),
    "worker": ("experiments.cpu_worker", "one worker of a training on CPUs, started by srun"),
}
"""The module of each verb, with the name of its function unless that is ``main``, and its help."""


def usage() -> str:
    """The help: one line for each verb."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, (_, text) in VERBS.items()]
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
    """Run a verb; returns its exit status.

    Raises:
        CommandError: an unknown verb, or an error of the verb.
    """
    if verb not in VERBS:
        raise CommandError(f"unknown command {verb}; choose from {', '.join(VERBS)}")
    module, _, function = VERBS[verb][0].partition(":")
    status: int = getattr(import_module(f"norm_plugin.{module}"), function or "main")(argv)
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
    """The name, formula, paper and options of a norm."""
    from norm_plugin.norms import norm_spec

    spec = norm_spec(name)
    lines = [name, f"    {spec.formula}", f"    {spec.paper}"]
    if spec.released:
        lines.append(f"    its released code: {spec.released}")
    for option in spec.options:
        kind = f"{option.type_name}, default {option.default}"
        lines.append(f"    {option.flag} ({kind}): {option.help}")
    return "\n".join(lines)


def check_norms(argv: Sequence[str]) -> int:
    """Print the outcome of each check of a user dir; CommandError if one fails."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin check",
        description="Check the norms and the placements that a --user-dir registers, and print a "
        "line for each check. The status is 1 if one fails.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --user-dir")
    args = parser.parse_args(argv)
    from norm_plugin.commands.user_dir_checks import run_checks

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
    """The command line; raises CommandError."""
    verb, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if verb and verb not in ("-h", "--help"):
        hide_warnings()
        return call(verb, arguments)
    print(usage() if verb else Path(__file__).resolve().parent)
    return 0


def run(argv: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its status."""
    run_command(partial(main, argv))
