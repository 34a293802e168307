"""Several stages of a run in one process, which imports torch and fairseq once for all of them.

    python -m norm_plugin stages JSON

JSON is a list of steps: ``name``, ``log``, ``command`` without Python or null, ``output`` where its
stdout becomes a file, ``item``, how each line begins that stands for one item, and ``check``, what
:func:`check_product` is given. On stdout it prints ``begin NAME``, ``end NAME``, and ``item`` for
each item. A step that fails ends it with status 1, and the reason is in the step's log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from norm_plugin.commands.command_line import run_command


class Counted:
    """A stream that also announces each line with a certain beginning."""

    def __init__(self, stream: TextIO, beginning: str, progress: TextIO) -> None:
        self.stream, self.beginning, self.progress = stream, beginning, progress

    def write(self, text: str) -> int:
        """Called by print with a whole line, then with its end."""
        if text.startswith(self.beginning):
            print("item", file=self.progress, flush=True)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def main(argv: Sequence[str]) -> int:
    """The command line."""
    if list(argv) in (["-h"], ["--help"]):
        print(f"usage: norm-plugin stages JSON\n\n{__doc__}")
        return 0
    progress = os.fdopen(os.dup(1), "w")
    for step in json.loads(argv[0]):
        print("begin", step["name"], file=progress, flush=True)
        run_step(step, progress)
        print("end", step["name"], file=progress, flush=True)
    return 0


def run_step(step: dict[str, Any], progress: TextIO) -> None:
    """Run a step; the stdout of its command becomes its output, all else its log."""
    logging.root.handlers.clear()  # those of the step before write to its files
    with open(step["log"], "a", encoding="utf-8", errors="replace") as log:
        _redirect(sys.stderr, log)
        _redirect(sys.stdout, log)
        if step["output"]:
            write_output(step, log, progress)
        elif step["command"]:
            run_in_process(step["command"])
        if step["check"]:
            or_exit(lambda: check_product(*step["check"]))
        sys.stdout.flush()


def write_output(step: dict[str, Any], log: TextIO, progress: TextIO) -> None:
    """Run a command whose stdout becomes a file, whole or not at all."""
    output = Path(step["output"])
    new = output.with_name(f"{output.name}.tmp")
    stdout = sys.stdout
    with open(new, "w", encoding="utf-8") as stream:
        _redirect(stdout, stream)
        if step["item"]:
            sys.stdout = Counted(stdout, step["item"], progress)
        try:
            run_in_process(step["command"])
        finally:
            sys.stdout = stdout
            stdout.flush()
        os.fsync(stream.fileno())
    _redirect(stdout, log)
    os.replace(new, output)


def _redirect(stream: TextIO, target: TextIO) -> None:
    """Let a standard stream of this process, and of what it starts, go to a file."""
    stream.flush()
    os.dup2(target.fileno(), stream.fileno())


def run_in_process(command: Sequence[str]) -> None:
    """What ``python COMMAND`` does, for a verb of this package or a command of fairseq.

    Ends the process with status 1 where the command fails.
    """
    import norm_plugin.models  # noqa: F401  fairseq does not import a --user-dir twice
    from norm_plugin import cli

    _, module, *argv = command
    if module == "norm_plugin":
        or_exit(partial(cli.call, argv[0], argv[1:]))
    else:
        sys.argv = [module, *argv]
        or_exit(import_module(module).cli_main)


def or_exit(call: Callable[[], int | None]) -> None:
    """Call a command, and end the process where it fails."""
    try:
        run_command(lambda: call() or 0)
    except SystemExit as end:
        if end.code:
            raise


def check_product(stage: str, *arguments: str) -> None:
    """Raise CommandError unless what a stage made is whole.

    A training that finds no GPU may end without an error and without a checkpoint; a translation
    may end early.

    Args:
        arguments: of "training" its ``--save-dir``, and the flags of ``norm-plugin average``
            where checkpoints are averaged; of "evaluation" its output, the prepared corpus and
            the metric.
    """
    from norm_plugin.checkpoints.average import select_checkpoints
    from norm_plugin.checkpoints.files import LAST, load_checkpoint
    from norm_plugin.experiments.metrics import find_metric

    if stage == "evaluation":
        log, data, metric = arguments
        find_metric(metric).check_log(Path(log), Path(data))
        return
    folder, *averaging = arguments
    paths = [Path(folder) / LAST]
    if averaging:
        kind = "epoch" if averaging[0] == "--last-epochs" else "update"
        paths += select_checkpoints(Path(folder), kind, int(averaging[1]), None)
    else:
        paths.append(Path(folder) / "checkpoint_best.pt")
    for path in paths:
        load_checkpoint(path)
