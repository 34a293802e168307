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
    from fairseq.utils import split_paths

    import norm_plugin.models  # noqa: F401  registers the models that the checkpoint names

    state = load_checkpoint(checkpoint) if state is None else state
    if state.get("cfg") is None:
        raise CommandError(f"{checkpoint} has no entry 'cfg' with the settings of its run")
    check_user_dir(state, checkpoint)
    folders = str(data or state["cfg"]["task"]["data"])
    for folder in map(Path, split_paths(folders)):
        if not folder.is_dir():
            raise CommandError(
                f"the folder {folder}, with the data of {checkpoint}, does not exist; give the "
                "folder of the binarized data (norm-plugin fold: by --data)"
            )
    with fairseq_errors(f"build the model of {checkpoint} with the data in {folders}"):
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], state=upgraded(state, folders)
        )
    return models[0], cfg, task


def upgraded(state: State, data: str) -> State:
    """Return a copy of ``state`` as fairseq's ``load_checkpoint_to_cpu`` returns it; tensors of the
    model are not copied. ``data``: the folder of the data."""
    from fairseq.checkpoint_utils import _upgrade_state_dict
    from fairseq.dataclass.utils import overwrite_args_by_name

    settings = {key: value for key, value in state.items() if key not in OF_TENSORS}
    state = {**copy.deepcopy(settings), "model": dict(state["model"])}  # fairseq renames entries
    state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
    overwrite_args_by_name(state["cfg"], {"data": data})
    upgraded: State = _upgrade_state_dict(state)
    return upgraded
