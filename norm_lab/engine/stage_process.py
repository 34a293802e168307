"""Run several stages of a run in one process, which imports torch and fairseq once."""

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

from norm_plugin.io.command_line import run_command


class ItemCountingStream:
    """A stream that reports each line with the prefix ``beginning`` to ``progress``."""

    def __init__(self, stream: TextIO, beginning: str, progress: TextIO) -> None:
        self.stream, self.beginning, self.progress = stream, beginning, progress

    def write(self, text: str) -> int:
        """Write text; print calls this with a whole line, then with the newline."""
        if text.startswith(self.beginning):
            print("item", file=self.progress, flush=True)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def main(argv: Sequence[str]) -> int:
    """Run the command ``stages``: several stages of a run in one process.

    JSON is a list of steps. A step has name, log, command (the arguments of Python, or null),
    output (a file for its stdout, or null), item (the prefix of the lines that report one item, or
    null) and check (the arguments of check_product). It prints "begin NAME", "end NAME", and "item"
    for each item. If a step fails, it exits with status 1; the reason is in the step's log.
    """
    if list(argv) in (["-h"], ["--help"]):
        print(f"usage: norm-plugin stages JSON\n\n{main.__doc__}")
        return 0
    progress = os.fdopen(os.dup(1), "w")
    for step in json.loads(argv[0]):
        print("begin", step["name"], file=progress, flush=True)
        run_step(step, progress)
        print("end", step["name"], file=progress, flush=True)
    return 0


def run_step(step: dict[str, Any], progress: TextIO) -> None:
    """Run a step; its stdout goes to its output file if it has one, everything else to its log."""
    logging.root.handlers.clear()  # handlers of the previous step write to its files
    with open(step["log"], "a", encoding="utf-8", errors="replace") as log:
        _redirect(sys.stderr, log)
        _redirect(sys.stdout, log)
        if step["output"]:
            write_output(step, log, progress)
        elif step["command"]:
            run_in_process(step["command"])
        if step["check"]:
            exit_on_error(lambda: check_product(*step["check"]))
        sys.stdout.flush()


def write_output(step: dict[str, Any], log: TextIO, progress: TextIO) -> None:
    """Run a command and write its stdout to a file, atomically."""
    output = Path(step["output"])
    new = output.with_name(f"{output.name}.tmp")
    stdout = sys.stdout
    with open(new, "w", encoding="utf-8") as stream:
        _redirect(stdout, stream)
        if step["item"]:
            sys.stdout = ItemCountingStream(stdout, step["item"], progress)
        try:
            run_in_process(step["command"])
        finally:
            sys.stdout = stdout
            stdout.flush()
        os.fsync(stream.fileno())
    _redirect(stdout, log)
    os.replace(new, output)


def _redirect(stream: TextIO, target: TextIO) -> None:
    """Redirect a standard stream of this process and its children to a file."""
    stream.flush()
    os.dup2(target.fileno(), stream.fileno())


def run_in_process(command: Sequence[str]) -> None:
    """Do what ``python COMMAND`` does, for a command of this package or of fairseq.

    If the command fails, the process exits with status 1.
    """
    import norm_plugin.models  # noqa: F401  fairseq does not import a --user-dir twice
    from norm_plugin import cli

    _, module, *argv = command
    if module == "norm_plugin":
        exit_on_error(partial(cli.call, argv[0], argv[1:]))
    else:
        sys.argv = [module, *argv]
        exit_on_error(import_module(module).cli_main)


def exit_on_error(call: Callable[[], int | None]) -> None:
    """Call a command; exit if it fails."""
    try:
        run_command(lambda: call() or 0)
    except SystemExit as end:
        if end.code:
            raise


def check_product(stage: str, *arguments: str) -> None:
    """Raise CommandError unless the product of a stage is complete.

    A training may end without an error and without a checkpoint, or a translation end early.

    Args:
        stage: "training" or "evaluation".
        arguments: for "training", the ``--save-dir``, and the flags of ``norm-plugin average`` if
            checkpoints are averaged; for "evaluation", its output, the prepared corpus and the
            metric.
    """
    from norm_lab.metrics import find_metric
    from norm_plugin.checkpoints.average import select_checkpoints
    from norm_plugin.checkpoints.files import LAST, load_checkpoint

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
