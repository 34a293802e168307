"""Build the model of a checkpoint with fairseq, from the settings stored in it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from norm_plugin.checkpoints.fairseq_input import fairseq_errors
from norm_plugin.checkpoints.files import State, load_checkpoint
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.user_dirs import check_user_dir

OF_TENSORS = ("model", "last_optimizer_state", "optimizer")
"""The large entries of a checkpoint."""


def build_model(
    checkpoint: Path, data: Path | None = None, state: State | None = None
) -> tuple[Any, Any, Any]:
    """Build the model of ``checkpoint``; return the model, its configuration and its task.

    Args:
        checkpoint: the file; its name is that in messages.
        data: the folder with the dictionaries; None: the one of the training.
        state: the content of the file if it was read before, also with other weights; not changed.

    Raises:
        CommandError: the data is missing or does not fit the model; a setting would run as
            code; the checkpoint's user dir was not imported.
    """
    from fairseq import checkpoint_utils

    import norm_plugin.models  # noqa: F401  registers the models that the checkpoint names

    state = load_checkpoint(checkpoint) if state is None else state
    state = upgraded(state, data)
    if state.get("cfg") is None:
        raise CommandError(f"{checkpoint} has no entry 'cfg' with the settings of its run")
    check_user_dir(state, checkpoint)
    folder = state["cfg"].task.data
    check_data(folder, checkpoint, given=data is not None)
    with fairseq_errors(f"build the model of {checkpoint} with the data in {folder}"):
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], state=state
        )
    return models[0], cfg, task


def upgraded(state: State, data: Path | None) -> State:
    """Return a copy of ``state`` as fairseq's ``load_checkpoint_to_cpu`` returns it; tensors of the
    model are not copied. ``data``: another folder of the data, or None."""
    from fairseq.checkpoint_utils import _upgrade_state_dict
    from fairseq.dataclass.utils import overwrite_args_by_name

    settings = {key: value for key, value in state.items() if key not in OF_TENSORS}
    state = {**copy.deepcopy(settings), "model": dict(state["model"])}  # fairseq renames entries
    if data is not None and state.get("args") is not None:
        state["args"].data = str(data)
    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        if data is not None:
            overwrite_args_by_name(state["cfg"], {"data": str(data)})
    upgraded: State = _upgrade_state_dict(state)
    return upgraded


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
