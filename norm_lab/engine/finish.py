"""Run the stages after the training in one process, which imports torch and fairseq once."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from norm_lab.config.spec import RunSpec
from norm_lab.engine.stages import Stage, run_stages
from norm_lab.metrics import AVERAGE, find_metric
from norm_lab.run.flags import averaging_flags
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
    """Run the command ``finish FOLDER STAGE...``: stages of the run in a folder.

    The stage ``train`` only checks the checkpoints. It prints "begin STAGE", "end STAGE", and
    "item" for each item that is evaluated. If a stage fails, it exits with status 1; the reason is
    in the log of the stage.
    """
    if list(argv) in (["-h"], ["--help"]):
        print(f"usage: norm-plugin finish FOLDER STAGE...\n\n{main.__doc__}")
        return 0
    spec = RunSpec.read(Path(argv[0]))
    progress = os.fdopen(os.dup(1), "w")
    for stage in run_stages(spec):
        if stage.name in argv[1:]:
            print("begin", stage.name, file=progress, flush=True)
            run_stage(spec, stage, progress)
            print("end", stage.name, file=progress, flush=True)
    return 0


def run_stage(spec: RunSpec, stage: Stage, progress: TextIO) -> None:
    """Run a stage; its stdout goes to its output file if it has one, all else to its log."""
    logging.root.handlers.clear()  # handlers of the previous stage write to its files
    with open(spec.log_of(stage.name), "a", encoding="utf-8", errors="replace") as log:
        _redirect(sys.stderr, log)
        _redirect(sys.stdout, log)
        if stage.output is not None:
            item = find_metric(spec.metric).item
            write_output(stage.command, stage.output, item and item[0], log, progress)
        elif stage.name != "train":
            run_in_process(stage.command)
        exit_on_error(lambda: check_product(spec, stage))
        sys.stdout.flush()


def write_output(
    command: Sequence[str], output: Path, item: str | None, log: TextIO, progress: TextIO
) -> None:
    """Run a command and write its stdout to a file, atomically.

    Args:
        item: the prefix of the lines that report one item each, if there are such lines.
    """
    new = output.with_name(f"{output.name}.tmp")
    stdout = sys.stdout
    with open(new, "w", encoding="utf-8") as stream:
        _redirect(stdout, stream)
        if item is not None:
            sys.stdout = ItemCountingStream(stdout, item, progress)
        try:
            run_in_process(command)
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


def check_product(spec: RunSpec, stage: Stage) -> None:
    """Raise CommandError unless the product of a stage is complete.

    A training may end without an error and without a checkpoint, or a translation end early.
    """
    metric = find_metric(spec.metric)
    if stage.output is not None:
        metric.check_log(stage.output, spec.data)
    elif stage.name == "train":
        flags = averaging_flags(spec.settings) if metric.checkpoint == AVERAGE else []
        check_checkpoints(spec.checkpoints, flags)


def check_checkpoints(folder: Path, averaging: Sequence[str]) -> None:
    """Raise CommandError unless the checkpoints of a finished training can be read.

    Args:
        averaging: the flags of ``norm-plugin average`` if checkpoints are averaged.
    """
    from norm_plugin.checkpoints.average import select_checkpoints
    from norm_plugin.checkpoints.files import LAST, load_checkpoint

    paths = [folder / LAST]
    if averaging:
        kind = "epoch" if averaging[0] == "--last-epochs" else "update"
        paths += select_checkpoints(folder, kind, int(averaging[1]), None)
    else:
        paths.append(folder / "checkpoint_best.pt")
    for path in paths:
        load_checkpoint(path)
