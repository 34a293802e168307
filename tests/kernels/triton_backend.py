"""The Triton backend for tests: compiled on a GPU, otherwise interpreted."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="no triton: scripts/setup.sh installs it")

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from norm_plugin.kernels.triton import loading  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS, FOUND = loading.load()

if DEVICE == "cpu" and not triton.knobs.runtime.interpret:
    pytest.skip("no GPU, and TRITON_INTERPRET=0 is set", allow_module_level=True)

# The interpreter would replace the functions of the language at each call of each function of a
# kernel, which takes half of its time. Here it does so once, and leaves them replaced.
replace = interpreter._patch_lang
replaced: set[int] = set()


def replace_once(function):
    """Stands in for ``_patch_lang``; what that returns restores nothing."""
    languages = {id(tl), id(tl.core)} & set(map(id, function.__globals__.values()))
    if not languages <= replaced:
        replace(function)
        replaced.update(languages)
    return interpreter._LangPatchScope()


if DEVICE == "cpu":
    interpreter._patch_lang = replace_once
