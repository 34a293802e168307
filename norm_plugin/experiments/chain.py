"""Several stages of a run in one process, which imports torch and fairseq once for all of them.

    python -m norm_plugin stages JSON

JSON is a list of steps: ``name``, ``log``, ``commands`` without Python, and for a step whose stdout
becomes a file ``output`` and ``item``, how each line begins that stands for one item. On stdout it
prints ``begin NAME``, ``end NAME``, and ``item`` for each item. A step that fails ends it with
status 1, and the reason is in the step's log.
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
    if argv in (["-h"], ["--help"]):
        print(f"usage: norm-plugin stages JSON\n\n{__doc__}")
        return 0
    progress = os.fdopen(os.dup(1), "w")
    for step in json.loads(argv[0]):
        print("begin", step["name"], file=progress, flush=True)
        run_step(step, progress)
        print("end", step["name"], file=progress, flush=True)
    return 0


def run_step(step: dict[str, Any], progress: TextIO) -> None:
    """Run the commands of a step; the stdout of the first becomes its output, all else its log."""
    logging.root.handlers.clear()  # those of the step before write to its files
    with open(step["log"], "a", encoding="utf-8", errors="replace") as log:
        _redirect(sys.stderr, log)
        _redirect(sys.stdout, log)
        for number, command in enumerate(step["commands"]):
            if number == 0 and step["output"]:
                write_output(command, step, log, progress)
            else:
                run_in_process(command)
        sys.stdout.flush()


def write_output(
    command: Sequence[str], step: dict[str, Any], log: TextIO, progress: TextIO
) -> None:
    """Run a command whose stdout becomes a file, whole or not at all."""
    output = Path(step["output"])
    new = output.with_name(f"{output.name}.tmp")
    stdout = sys.stdout
    with open(new, "w", encoding="utf-8") as stream:
        _redirect(stdout, stream)
        if step["item"]:
            sys.stdout = Counted(stdout, step["item"], progress)
        try:
            run_in_process(command)
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

    _, module, *words = command
    call: Callable[[], int | None]
    if module == "norm_plugin":
        call = partial(cli.call, words[0], words[1:])
    else:
        sys.argv = [module, *words]
        call = import_module(module).cli_main
    try:
        run_command(lambda: call() or 0)
    except SystemExit as end:
        if end.code:
            raise
