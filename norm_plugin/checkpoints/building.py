"""Build the model of a checkpoint with fairseq, from the settings stored in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from norm_plugin.checkpoints.fairseq_input import fairseq_errors
from norm_plugin.checkpoints.files import State, content_errors
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.user_dirs import check_user_dir


def build_model(
    checkpoint: Path, data: Path | None = None, weights: State | None = None
) -> tuple[Any, Any, Any]:
    """Build the model of ``checkpoint``; return the model, its configuration and its task.

    Args:
        checkpoint: the source of the settings.
        data: the folder with the dictionaries; None: the one of the training.
        weights: the state of the model, in place of that in ``checkpoint``; not changed.

    Raises:
        CommandError: the data is missing or does not fit the model; a setting would run as
            code; the checkpoint's user dir was not imported; the checkpoint is damaged.
    """
    from fairseq import checkpoint_utils

    import norm_plugin.models  # noqa: F401  registers the models that the checkpoint names

    overrides = {} if data is None else {"data": str(data)}
    with content_errors(checkpoint):
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), overrides)
        if state.get("cfg") is None:
            raise CommandError(f"{checkpoint} has no entry 'cfg' with the settings of its run")
        check_user_dir(state, checkpoint)
        folder = state["cfg"].task.data
        check_data(folder, checkpoint, given=data is not None)
    if weights is not None:
        state["model"] = dict(weights)  # fairseq renames old entries in place
    doing = f"build the model of {checkpoint} with the data in {folder}"
    with content_errors(checkpoint), fairseq_errors(doing):
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], state=state
        )
    return models[0], cfg, task


def check_data(data: str, checkpoint: Path, given: bool) -> None:
    """Raise CommandError unless each folder of ``data``, joined by colons, exists.

    Args:
        given: whether the user named it; otherwise it is that of the checkpoint.
    """
    from fairseq.utils import split_paths

    for folder in split_paths(data):
        if not Path(folder).is_dir() and given:
            raise CommandError(
                f"the folder {folder} does not exist; give the folder of the binarized data, with "
                "dict.txt or dict.LANGUAGE.txt"
            )
        if not Path(folder).is_dir():
            raise CommandError(
                f"the data of {checkpoint}, {folder}, does not exist; "
                "name the folder of the binarized data with --data"
            )
