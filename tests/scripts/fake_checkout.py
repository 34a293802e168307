"""A checkout whose Python is fake_python.py: scripts run in a fraction of a second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fake_python

CHECKOUT = Path(__file__).resolve().parents[2]
NOTHING = "#!/usr/bin/env bash\n"
# A kill may come just before and just after a rename, too; see point() of the fake Python.
MOVE = """#!/usr/bin/env bash
point() {{
  printf . >>"$FAKE_POINTS"
  local points=$(<"$FAKE_POINTS")
  if ((${{#points}} == FAKE_KILL_AT)); then kill -KILL 0; fi
}}
point
{mv} "$@"
point
"""
READING = {"norm_plugin.experiments.recipes", "norm_plugin.experiments.products"}
# What may differ between runs that end alike.
NOT_COMPARED = (".seconds", ".lock", ".new")


class FakeCheckout:
    """``folder`` holds the checkout, its work folder and the notes of the fake Python."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"  # with a space, as a user's may have one
        self.work = folder / "work"
        self.calls_file = folder / "calls"
        self.points = folder / "points"
        shutil.copytree(CHECKOUT / "scripts", self.root / "scripts")
        self.python = self.root / ".venv/bin/python"
        fake = f'exec {sys.executable} -S -E {fake_python.__file__} "$@"\n'
        self._command(self.python, NOTHING + fake)
        self._command(self.root / "scripts/setup.sh", NOTHING)
        self._command(folder / "bin/mv", MOVE.format(mv=shutil.which("mv")))
        self.calls_file.touch()

    @staticmethod
    def _command(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, kill_at: int = 0) -> dict[str, str]:
        """Where the stand-ins are found, and what they are to do."""
        environment = {
            **os.environ,
            "PATH": f"{self.work.parent / 'bin'}:{os.environ['PATH']}",
            "FAKE_FOLDER": str(self.work.parent),
            "FAKE_CALLS": str(self.calls_file),
            "FAKE_POINTS": str(self.points),
            "FAKE_KILL_AT": str(kill_at),
        }
        for name in ("NORM_VENV", "NORM_DATA_DIR"):
            environment.pop(name, None)
        return environment

    def bash(
        self, *words: str, kill_at: int = 0, folder: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run bash in a session of its own, killed at a point of the fake Python if so asked."""
        self.points.write_text("")
        return subprocess.run(
            ["bash", *words],
            cwd=folder or self.root,
            env={**self.environment(kill_at), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,
        )

    def script(
        self, name: str, *words: str, kill_at: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run scripts/NAME.sh in the work folder of this checkout."""
        command = (f"scripts/{name}.sh", "--work", str(self.work), *words)
        return self.bash(*command, kill_at=kill_at, **environment)

    def lib(self, code: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run shell code after sourcing lib.sh and reading the options ``words``."""
        start = 'source scripts/lib.sh; parse_options "$@"; '
        return self.bash("-c", start + code, "lib", "--work", str(self.work), *words)

    def take_calls(self) -> list[list[str]]:
        """The commands since the last time, but for those that only read."""
        calls = [json.loads(line) for line in self.calls_file.read_text().splitlines()]
        self.calls_file.write_text("")
        return [call for call in calls if not READING & set(call)]

    def outcome(self) -> dict[str, str]:
        """Every file that a run left: its name to its text."""
        folders = [folder for folder in (self.work, self.root / "results") if folder.is_dir()]
        return {
            str(path.relative_to(folder)): path.read_text()
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file() and path.suffix not in NOT_COMPARED and path.name != "lock"
        }
