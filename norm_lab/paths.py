"""The checkout in which the lab works, and the Python of its commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PYTHON = [sys.executable]
"""The interpreter that runs the commands of a run; tests replace it."""
ROOT = Path(__file__).resolve().parents[1]
"""The checkout, where commands run."""
CONFIGS = ROOT / "configs"
"""The folder of the YAML files."""
STUDIES = ROOT / "studies"
"""The folder of our studies, each a folder with all that belongs to it."""


def python_path(*folders: Path) -> str:
    """Return PYTHONPATH with ``folders`` prepended."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([given] if given else [])])
