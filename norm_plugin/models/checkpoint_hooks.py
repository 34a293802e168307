"""No checkpoint that fairseq reads runs code by its settings: see stored_settings.py beside this.

    checkpoint_utils.load_checkpoint_to_cpu   refuses what it has read where a setting is unsafe

fairseq-train, -generate, -interactive, -validate and -eval-lm, the hub and every model that loads
another one read their checkpoints through that function, before they use a setting of it.
"""

from __future__ import annotations

import functools
from typing import Any

from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from norm_plugin.models.stored_settings import allow_stored_flags, check_settings
from norm_plugin.models.wrapping import Function, wrap_once


def around_load_checkpoint(load: Function) -> Function:
    """Around ``checkpoint_utils.load_checkpoint_to_cpu``."""

    @functools.wraps(load)
    def wrapper(path: str, *args: Any, **kwargs: Any) -> Any:
        state = load(path, *args, **kwargs)
        for name in ("cfg", "args"):
            check_settings(_plain(state.get(name)), path)
        return state

    return wrapper


def _plain(settings: Any) -> Any:
    if OmegaConf.is_config(settings):
        # "${...}" stays as it is: no literal, but the name of a value that may be none either
        return OmegaConf.to_container(settings, resolve=False)
    return settings


def install() -> None:
    """Wrap fairseq's function, once a process, and let torch's safe loader read its checkpoints."""
    allow_stored_flags()
    wrap_once(checkpoint_utils, "load_checkpoint_to_cpu", around_load_checkpoint)
