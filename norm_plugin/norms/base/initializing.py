"""Norms in models of transformers begin with their initial values where a checkpoint lacks them.

Such a model builds its modules without values, and then initializes what a checkpoint does not have
by its method ``_init_weights``, which knows the classes of torch and of transformers alone.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from norm_plugin.norms.base.contract import Norm

METHOD = "_init_weights"


class InitWeights:
    """The method ``_init_weights`` of a model, which resets the norms of this package as well."""

    def __init__(self, model: nn.Module) -> None:
        # Not the model itself, whose memory would stay until the garbage collector finds the cycle
        self._model = weakref.ref(model)

    def __getstate__(self) -> nn.Module | None:
        """Return the model, with which it is copied or pickled."""
        return self._model()

    def __setstate__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)

    def __call__(self, module: nn.Module, *args: Any) -> None:
        """Initialize ``module``; transformers leaves the tensors that a checkpoint had."""
        model = self._model()
        if isinstance(module, Norm):
            module.reset_parameters()
        elif model is not None:
            getattr(type(model), METHOD)(model, module, *args)


def initialize_with_model(model: nn.Module) -> None:
    """Let each part of ``model`` that initializes its modules initialize its norms, too."""
    for module in model.modules():
        if callable(getattr(type(module), METHOD, None)):
            vars(module)[METHOD] = InitWeights(module)
