"""Runs of norm_lab whose commands are those of fake_python.py.

A run is forked off this process, which has paid for importing torch and fairseq, into a session of
its own, and can be killed there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

import fake_python
import norm_plugin.models  # noqa: F401  so that no forked process has to
from norm_lab.config import compose, options
from norm_lab.config.spec import RunSpec
from norm_plugin.cli import main
from norm_plugin.io.command_line import CommandError, run_command

# What may differ between runs that end alike.
NOT_COMPARED = (".lock", ".new")


def spec_of(*argv: object) -> RunSpec:
    """The run that a command line of ``run`` asks for."""
    args = options.parse(options.run_parser(), list(map(str, argv)))
    (spec,) = compose.compose_runs(options.request_of(args))
    return spec


def composed(*argv: str) -> list[RunSpec]:
    """The runs that a command line of ``sweep`` asks for."""
    args = options.parse(options.sweep_parser(), argv)
    return compose.compose_runs(options.request_of(args))


def compose_here(argv: Sequence[str]) -> None:
    """Compose the runs of a command, whose parts are cached, for the process that is forked off.

    A --user-dir would remain imported in this process.
    """
    if argv[0] in ("run", "sweep", "tune") and "--user-dir" not in argv:
        parser = options.run_parser() if argv[0] == "run" else options.sweep_parser()
        with contextlib.suppress(CommandError):
            compose.compose_runs(options.request_of(options.parse(parser, argv[1:])))


class FakeRuns:
    """``folder`` holds the work folder, and the notes of the fake Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "the work"  # with a space, as a user's may have one
        self.calls_file = folder / "calls"
        self.points = folder / "points"
        self.training = folder / "training"
        self.not_on_disk = folder / "not on disk"
        """The names that files took before their content was flushed."""
        self.calls_file.touch()

    def environment(self, kill_at: int = 0) -> dict[str, str]:
        """Return the variables that tell the fake Python what to do, and where to log it."""
        return {
            "FAKE_FOLDER": str(self.folder),
            "FAKE_CALLS": str(self.calls_file),
            "FAKE_POINTS": str(self.points),
            "FAKE_NOT_ON_DISK": str(self.not_on_disk),
            "FAKE_KILL_AT": str(kill_at),
        }

    def start(
        self, *argv: str, kill_at: int = 0, here: Path | None = None, **environment: str
    ) -> int:
        """Fork a command of norm_lab; returns its process."""
        if here is None:
            compose_here(argv)
        self.points.write_text("")
        self.training.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.setsid()
                torch.set_num_threads(1)  # threads of this process do not live on in a forked one
                os.chdir(here or self.folder)
                os.environ.update(self.environment(kill_at), **environment)
                fake_python.replace_commands()
                with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
                    sys.stdout, sys.stderr = out, err
                    run_command(partial(main, list(argv)))
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:  # noqa: BLE001  nothing may come back into pytest
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(code)
        return child

    def command(
        self, *argv: str, kill_at: int = 0, here: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        _, status = os.waitpid(self.start(*argv, kill_at=kill_at, here=here, **environment), 0)
        code = os.waitstatus_to_exitcode(status)
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(argv, code, out, err)

    def run(
        self, name: str, *argv: str, kill_at: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """``run NAME --work WORK ARGV``."""
        command = ("run", name, "--work", str(self.work), *argv)
        return self.command(*command, kill_at=kill_at, **environment)

    def bash(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run shell code with the environment of the fake Python."""
        self.points.write_text("")
        return subprocess.run(
            ["bash", "-ec", code],
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def take_calls(self) -> list[list[str]]:
        """The commands since the last time."""
        calls = [json.loads(line) for line in self.calls_file.read_text().splitlines()]
        self.calls_file.write_text("")
        return calls

    def outcome(self) -> dict[str, str]:
        """Every file that a run left, but for logs and times: its name to its text."""
        if not self.work.is_dir():
            return {}
        return {
            str(path.relative_to(self.work)): path.read_text().replace(str(self.folder), "")
            for path in self.work.rglob("*")
            if path.is_file()
            and path.suffix not in NOT_COMPARED
            and path.name not in ("lock", "status.json")
            and path.parent.name != "logs"
        }

    @contextlib.contextmanager
    def going_on(self, *argv: str) -> Iterator[int]:
        """A run in the middle of its training; nothing of it is left behind."""
        child = self.start("run", *argv, "--work", str(self.work), FAKE_TRAINING="goes on")
        try:
            while not self.training.exists():
                ended, _ = os.waitpid(child, os.WNOHANG)
                assert ended == 0, (self.folder / "err").read_text()
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def of_stage(calls: list[list[str]], module: str) -> list[str]:
    """The one call of a module."""
    (call,) = [call for call in calls if module in call]
    return call


def value(call: list[str], flag: str) -> str:
    """Return the value after the first occurrence of a flag."""
    return call[call.index(flag) + 1]
