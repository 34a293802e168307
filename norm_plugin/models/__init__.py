"""The fairseq side: importing this registers ``norm_transformer`` and its architectures."""

from __future__ import annotations

from norm_plugin.models import architectures as architectures
from norm_plugin.models import checkpoint_hooks, generation_hooks, trainer_hooks
from norm_plugin.models.folding import fold_norms
from norm_plugin.models.translation import NormTransformerModel

checkpoint_hooks.install()
trainer_hooks.install()
generation_hooks.install()

__all__ = ["NormTransformerModel", "fold_norms"]
