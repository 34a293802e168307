"""``python -m norm_plugin.experiments``: one run, a sweep over runs, or the demo."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from norm_plugin.commands.command_line import CommandError, hide_warnings, run_command
from norm_plugin.experiments import demo, options, sweep
from norm_plugin.experiments.console import Console
from norm_plugin.experiments.done import print_plan
from norm_plugin.experiments.failures import RunFailedError
from norm_plugin.experiments.plan import make_plan
from norm_plugin.experiments.run import execute
from norm_plugin.experiments.settings import read_settings

SHOWN = 20  # lines of a stage that failed
USAGE = """usage: python -m norm_plugin.experiments {run,sweep,demo} ...

  run    one run, from raw text to a score: run multi30k preset=cpu norm=powernorm seed=1
  sweep  a grid of runs: sweep multi30k preset=cpu norm=layernorm,powernorm seed=1,2,3 --jobs 2
  demo   the toy corpus for four norms, and a table

Each has --help."""


def run(argv: Sequence[str]) -> int:
    """The command ``run``."""
    parser = options.run_parser()
    args = options.parse(parser, argv)
    plan = make_plan(read_settings(args))
    if plan.settings.dry:
        print_plan(plan)
    else:
        execute(plan, Console(plan.name), os.environ, args.retry)
    return 0


COMMANDS = {"run": run, "sweep": sweep.main, "demo": demo.main}


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a command."""
    hide_warnings()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 1
    if words[0] not in COMMANDS:
        raise CommandError(f"unknown command {words[0]}; choose from {', '.join(COMMANDS)}")
    try:
        return COMMANDS[words[0]](words[1:])
    except options.OptionError as error:
        raise CommandError(str(error)) from error
    except RunFailedError as failure:
        for line in failure.tail[-SHOWN:]:
            print(f"  | {line}", file=sys.stderr)
        raise CommandError(
            f"{failure.stage} {failure.state}: {failure.reason}; full output: {failure.log}"
        ) from failure


if __name__ == "__main__":
    run_command(main)
