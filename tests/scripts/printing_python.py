"""A Python that prints where it was started, its path, and its arguments."""

from __future__ import annotations

from pathlib import Path

PYTHON = """#!/usr/bin/env bash
printf '%s\\n' "$PWD" "$PYTHONPATH" "$@"
"""


def command(path: Path, text: str) -> None:
    """Write a command."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
