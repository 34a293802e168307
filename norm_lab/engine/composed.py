"""Compose the runs of a request in a child process, which imports hydra, fairseq and torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from norm_lab.config.request import Composed, Request
from norm_lab.engine.process import exit_reason
from norm_lab.paths import PYTHON, ROOT, python_path
from norm_plugin.io.command_line import CommandError


def compose(request: Request) -> Composed:
    """Return the checked runs of a request; raise CommandError for the first invalid one."""
    process = subprocess.run(
        [*PYTHON, "-m", "norm_plugin", "compose", json.dumps(request.to_json())],
        env={
            **os.environ,
            "PYTHONWARNINGS": "ignore",
            "PYTHONSAFEPATH": "1",  # do not import a norm_plugin from the working directory
            "PYTHONPATH": python_path(ROOT),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        *traceback, last = process.stderr.splitlines() or [""]
        if not last.startswith("error: "):
            print(*traceback, sep="\n", file=sys.stderr)
        reason = last.removeprefix("error: ") or exit_reason(process.returncode)
        raise CommandError(reason)
    return Composed.from_json(json.loads(process.stdout.splitlines()[-1]))
