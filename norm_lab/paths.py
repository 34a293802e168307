"""The files of the lab, where it works, and the Python of its commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import norm_plugin

PYTHON = [sys.executable]
"""The interpreter that runs the commands of a run; tests replace it."""
PLUGIN = Path(norm_plugin.__file__).resolve().parent
"""The folder of the plugin."""
ROOT = PLUGIN.parent
"""The checkout, or where the package is installed; commands run here."""
INSTALLED = Path(__file__).resolve().with_name("installed")
"""The folder with ``configs`` and ``data-prep`` of an installed package; a checkout has none."""
FILES = INSTALLED if INSTALLED.is_dir() else ROOT
"""The folder with ``configs`` and ``data-prep``."""
WORK = (Path.cwd() if INSTALLED.is_dir() else ROOT) / "work"
"""The default of ``--work``: in the checkout, or else where the command is called."""
CONFIGS = FILES / "configs"
"""The folder of the YAML files."""
STUDIES = ROOT / "studies"
"""The folder of our studies, each a folder with all that belongs to it."""


def python_path(*folders: Path) -> str:
    """Return PYTHONPATH with ``folders`` prepended."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([given] if given else [])])
