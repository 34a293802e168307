"""The user's own ``--user-dir``: its import, and which one a checkpoint needs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from norm_plugin.io.command_line import CommandError

PACKAGE = __name__.partition(".")[0]
RAISED = (Exception, SystemExit)
"""What code of a user dir may raise."""


def add_user_dir(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--user-dir``, whose value :func:`import_user_dir` takes."""
    parser.add_argument(
        "--user-dir",
        type=Path,
        metavar="DIR",
        help="the --user-dir of the training, if not norm_plugin",
    )


def import_user_dir(user_dir: Path | None) -> None:
    """Import a ``--user-dir``, which registers the user's own norms, models and tasks.

    A folder named ``norm_plugin`` means this package, wherever it is installed.

    Raises:
        CommandError: the folder does not exist or cannot be imported.
    """
    if user_dir is None:
        return
    from fairseq.utils import import_user_module

    folder = os.path.abspath(user_dir)
    if os.path.basename(folder) == PACKAGE:
        return
    if not os.path.isdir(folder):
        raise CommandError(f"cannot import --user-dir {user_dir}: it is not a folder")
    try:
        import_user_module(argparse.Namespace(user_dir=folder))
    except RAISED as error:
        raise CommandError(
            f"--user-dir {user_dir} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def import_folder(user_dir: Path) -> Path:
    """Import ``user_dir`` as fairseq does, but without fairseq; return the folder itself.

    Raises:
        CommandError: the folder does not exist, or another package has its name.
    """
    if not user_dir.is_dir():
        raise CommandError(f"{user_dir} is not a folder; give the folder for --user-dir")
    folder = user_dir.resolve()
    sys.path.insert(0, str(folder.parent))
    try:
        module = importlib.import_module(folder.name)
    except RAISED as error:
        raise CommandError(f"cannot import {user_dir}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder.parent))
    places = [Path(place).resolve() for place in getattr(module, "__path__", [])]
    if folder not in places:
        raise CommandError(f"{folder.name} is also another Python package; rename the folder")
    return folder


def check_user_dir(state: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise CommandError if a checkpoint needs a ``--user-dir`` that the user did not give.

    Importing a folder because the file names it would run code that somebody else chose. The folder
    may have moved; only its name, which is that of the Python package, is compared.
    """
    from fairseq.utils import import_user_module

    stored = ((state.get("cfg") or {}).get("common") or {}).get("user_dir")
    given = {Path(path).name for path in getattr(import_user_module, "memo", set())}
    if stored is None or Path(str(stored)).name in {PACKAGE, *given}:
        return
    raise CommandError(
        f"{checkpoint} was trained with --user-dir {stored} (its setting common.user_dir); a "
        f"folder that only the file names is not imported. If you trust it, add --user-dir "
        f"{stored}, or the folder's present path"
    )
