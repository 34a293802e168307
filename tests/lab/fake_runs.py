"""Runs of norm_lab whose commands are those of fake_python.py.

A run is forked off this process, which has paid for importing torch and fairseq, into a session of
its own, and can be killed there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any

from forked import serve

import fake_python
import norm_plugin.models  # noqa: F401  so that no forked process has to
from norm_lab import paths
from norm_lab.config import compose, configuration, options
from norm_lab.config.spec import RunSpec
from norm_lab.engine import finish
from norm_lab.paths import ROOT
from norm_plugin.cli import main
from norm_plugin.io.command_line import run_command

PYTHON = [sys.executable, "-S", "-E", fake_python.__file__]
# What may differ between runs that end alike.
NOT_COMPARED = (".lock", ".new")
REMEMBERED = tempfile.TemporaryDirectory()
"""The results of :func:`remembered` functions in this process and those forked from it."""


def contents(name: str) -> list[bytes]:
    """Return the contents of a test's own file or folder; files of this checkout do not change."""
    path = Path(name)
    if not path.is_absolute() or path.is_relative_to(ROOT):
        return []
    return [file.read_bytes() for file in sorted(path.rglob("*.py")) or [path]]


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, for which hydra takes half a second, once for all processes of the tests."""

    @wraps(function)
    def call(first: Path | tuple[str, ...], *more: Any) -> Any:
        names = first if isinstance(first, tuple) else [str(first)]
        key = (function.__name__, first, more, list(map(contents, names)))
        file = Path(REMEMBERED.name, hashlib.sha256(repr(key).encode()).hexdigest())
        if not file.exists():
            result = pickle.dumps(function(first, *more))
            new = file.with_suffix(f".{os.getpid()}")
            new.write_bytes(result)
            new.rename(file)
        return pickle.loads(file.read_bytes())

    return call


configuration._compose = remembered(configuration._compose)
compose.check_training = remembered(compose.check_training)


def fake_command(argv: Sequence[str]) -> int:
    """A command of norm_lab in this process, from now on with fake commands."""
    paths.PYTHON[:] = PYTHON
    finish.run_in_process = lambda command: fake_python.main(list(command))
    finish.check_product = lambda *_: None  # tested by itself
    replace, fsync = os.replace, os.fsync
    synced = set()

    def fsync_and_note(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def replace_at_points(source: Path, target: Path) -> None:
        """A kill may come just before and just after a rename, too."""
        if os.stat(source).st_ino not in synced:
            with open(os.environ["FAKE_NOT_ON_DISK"], "a") as stream:
                print(target, file=stream)
        fake_python.point()
        replace(source, target)
        fake_python.point()

    os.replace, os.fsync = replace_at_points, fsync_and_note
    try:
        run_command(partial(main, list(argv)))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def spec_of(*argv: object) -> RunSpec:
    """The run that a command line of ``run`` asks for."""
    args = options.parse(options.run_parser(), list(map(str, argv)))
    (spec,) = compose.compose_runs(options.request_of(args))
    return spec


def composed(*argv: str) -> list[RunSpec]:
    """The runs that a command line of ``sweep`` asks for."""
    args = options.parse(options.sweep_parser(), argv)
    return compose.compose_runs(options.request_of(args))


@lru_cache
def warm_up() -> None:
    """Compose once what hydra and fairseq prepare for any run; forked processes then need not."""
    spec_of("toy")


class FakeRuns:
    """``folder`` holds the work folder, and the notes of the fake Python."""

    def __init__(self, folder: Path) -> None:
        warm_up()
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
        self.points.write_text("")
        self.training.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.setsid()
                os.chdir(here or self.folder)
                os.environ.update(self.environment(kill_at), **environment)
                serve(fake_command)
                with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
                    sys.stdout, sys.stderr = out, err
                    code = fake_command(argv)
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
