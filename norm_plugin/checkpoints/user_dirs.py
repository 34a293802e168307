"""The user's own ``--user-dir``: which one a checkpoint needs, and its import."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import norm_plugin
from norm_plugin.checkpoints.files import State
from norm_plugin.io.command_line import CommandError


def add_user_dir(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--user-dir``, whose value :func:`import_user_dir` takes."""
    parser.add_argument(
        "--user-dir",
        type=Path,
        metavar="DIR",
        help="the --user-dir of the training, if it was not norm_plugin",
    )


def import_user_dir(user_dir: Path | None) -> None:
    """Import a ``--user-dir``, which registers the user's own norms, models and tasks.

    A folder ``norm_plugin`` stands for this package, wherever that lies now.

    CommandError if it does not exist or cannot be imported.
    """
    if user_dir is None:
        return
    from fairseq.utils import import_user_module

    folder = os.path.abspath(user_dir)
    if os.path.basename(folder) == norm_plugin.__name__:
        return
    if not os.path.isdir(folder):
        raise CommandError(f"cannot import --user-dir {user_dir}: it is not a folder")
    try:
        import_user_module(argparse.Namespace(user_dir=folder))
    except (Exception, SystemExit) as error:  # its code may raise anything
        raise CommandError(
            f"--user-dir {user_dir} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def check_user_dir(state: State, checkpoint: Path) -> None:
    """Raise CommandError where a checkpoint needs a ``--user-dir`` that the user did not give.

    The file only names the folder, and importing it would run code that somebody else chose. The
    folder may have moved; only its name is compared, which is that of the Python package.
    """
    from fairseq.utils import import_user_module

    stored = ((state.get("cfg") or {}).get("common") or {}).get("user_dir")
    given = {Path(path).name for path in getattr(import_user_module, "memo", set())}
    if stored is None or Path(str(stored)).name in {norm_plugin.__name__, *given}:
        return
    raise CommandError(
        f"{checkpoint} was trained with --user-dir {stored} (its setting common.user_dir). A "
        f"folder that only the file names is not imported. If you trust it, add --user-dir "
        f"{stored}, or where that folder is now"
    )
