"""What torch's safe loader accepts from a fairseq checkpoint, and its error if it refuses one.

torch 2.6 and later load with ``weights_only=True``, which creates only tensors and plain
containers. fairseq also stores the flags of a command line, a Namespace, and logs some scores as
numpy's arrays and scalars. Allowing only these keeps the safe loader on.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import re
from collections.abc import Iterator, MutableMapping
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf, open_dict

from norm_plugin.declarations.flags import ALLOW_MISMATCH, GHOST_BATCH_TOKENS, QKV_SCOPE
from norm_plugin.io.stored_settings import check_settings, plain

NAMED = re.compile(r"GLOBAL (\S+)|(?:but got|unrecognized function) (.+)")
"""What the file names or holds, in torch's message and in ours, without ``builtins.``."""
OLD_KEYS = {
    "norm_head_width": QKV_SCOPE,
    "norm_stat_tokens": GHOST_BATCH_TOKENS,
    "norm_allow_change": ALLOW_MISMATCH,
    "norm_fused_dropout": None,  # gone: dropout is torch's
}
"""The names of settings in older checkpoints, and their names now; None: gone."""


class RefusedContentError(ValueError):
    """Raised for a checkpoint with content that the safe loader refuses; names both."""


def allow_stored_classes() -> None:
    """Allow what fairseq stores in torch's safe loader, everywhere in this process."""
    numeric = {type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OSUVMm"}
    rebuild: list[Any] = [np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]]
    named = [
        (function, f"{module}.multiarray.{function.__name__}")
        for function in rebuild
        for module in ("numpy._core", "numpy.core")  # numpy 2 and numpy 1
    ]
    allowed: list[Any] = [argparse.Namespace, np.ndarray, np.dtype, *numeric, *named]
    torch.serialization.add_safe_globals(allowed)


def refused_name(error: pickle.UnpicklingError) -> str:
    """Return the class, function or object that was refused; empty for a damaged file."""
    found = NAMED.search(str(error))
    return (found.group(1) or found.group(2)).strip() if found else ""


def read_state(source: Any, path: object, mmap: bool = False) -> Any:
    """Return the content of a checkpoint, tensors on the CPU; no setting in it can run as code.

    Args:
        source: the file, or its local path.
        path: its name, for errors.
        mmap: read a tensor only when it is used; for archives, as torch has written since 1.6.

    Raises:
        RefusedContentError: the content is of a class that the safe loader refuses.
        UnsafeSettingError: fairseq would run a setting.
    """
    with safe_loading(path):
        state = torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    return checked(state, path)


def checked(state: Any, path: object) -> Any:
    """Return the content of a checkpoint, with today's names of the settings of its model.

    Raises:
        UnsafeSettingError: fairseq would run a setting.
    """
    if isinstance(state, dict):
        for name in ("cfg", "args"):
            check_settings(plain(state.get(name)), path)
        for settings in (state.get("args"), (state.get("cfg") or {}).get("model")):
            _rename(vars(settings) if isinstance(settings, argparse.Namespace) else settings)
    return state


def _rename(settings: Any) -> None:
    """Rename :data:`OLD_KEYS` in place; a value under the name of today wins."""
    with open_dict(settings) if OmegaConf.is_config(settings) else contextlib.nullcontext():
        for old, new in OLD_KEYS.items():
            if isinstance(settings, MutableMapping) and old in settings:
                value = settings.pop(old)
                if new and settings.get(new) is None:
                    settings[new] = value


@contextlib.contextmanager
def safe_loading(file: object) -> Iterator[None]:
    """Return a context that raises RefusedContentError for what the loader refuses in ``file``."""
    try:
        yield
    except pickle.UnpicklingError as error:
        if refused := refused_name(error):
            raise RefusedContentError(
                f"{file} holds {refused}, which torch's safe loader does not read, because it "
                "could run code. If you trust the file, allow this class or function in your "
                "--user-dir by torch.serialization.add_safe_globals"
            ) from None
        raise
