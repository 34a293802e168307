"""Build the model of a checkpoint with fairseq, from the settings stored in it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import norm_plugin
from norm_plugin.checkpoints.files import State
from norm_plugin.commands.command_line import CommandError
from norm_plugin.models.stored_settings import UnsafeSettingError

# What fairseq raises where settings, weights and data do not fit together.
UNFIT = (OSError, RuntimeError, ValueError, LookupError)


def build_model(
    checkpoint: Path, data: Path | None = None, weights: State | None = None
) -> tuple[Any, Any, Any]:
    """The model of ``checkpoint``, its configuration and its task.

    Args:
        checkpoint: its settings are used.
        data: the folder that holds the dictionaries; None: the one it was trained on.
        weights: the state of the model, in place of the one in ``checkpoint``; not changed.

    Raises:
        CommandError: the data is missing, or does not fit the model; a setting would run as
            code; the checkpoint's user dir was not imported.
    """
    from fairseq import checkpoint_utils

    import norm_plugin.models  # noqa: F401  registers the models that the checkpoint names

    overrides = {} if data is None else {"data": str(data)}
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), overrides)
    except UnsafeSettingError as error:
        raise CommandError(str(error)) from error
    if state.get("cfg") is None:
        raise CommandError(f"{checkpoint} has no entry 'cfg', which holds the settings")
    check_user_dir(state, checkpoint)
    folder = state["cfg"].task.data
    check_data(folder, checkpoint)
    if weights is not None:
        state["model"] = dict(weights)  # fairseq renames old entries in place
    try:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], state=state
        )
    except UNFIT as error:
        raise CommandError(
            f"cannot build the model of {checkpoint} with the data in {folder}: {error}"
        ) from error
    return models[0], cfg, task


def check_data(data: str, checkpoint: Path) -> None:
    """Raise CommandError unless each folder of ``data``, joined by colons, exists."""
    from fairseq.utils import split_paths

    for folder in split_paths(data):
        if not Path(folder).is_dir():
            raise CommandError(
                f"the data of {checkpoint}, {folder}, does not exist; "
                "name the folder of the binarized data with --data"
            )


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
        f"{checkpoint} was trained with --user-dir {stored} (its setting common.user_dir), and a "
        f"folder that only the file names is not imported; if you trust it, add --user-dir "
        f"{stored}, or where that folder is now"
    )


def import_user_dir(user_dir: Path | None) -> None:
    """Import the folder of a ``--user-dir`` that the user gave, if it is not this plugin.

    Norms and tasks that it registers are known from then on. Raises CommandError where it
    cannot be imported.
    """
    if user_dir is None or user_dir.name == norm_plugin.__name__:
        return
    from fairseq.utils import import_user_module

    try:
        import_user_module(argparse.Namespace(user_dir=str(user_dir)))
    except (OSError, ImportError) as error:
        raise CommandError(f"cannot import --user-dir {user_dir}: {error}") from error


def add_user_dir(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--user-dir``, whose value :func:`import_user_dir` takes."""
    parser.add_argument(
        "--user-dir",
        type=Path,
        metavar="DIR",
        help="the --user-dir of the training, if it was not norm_plugin",
    )
