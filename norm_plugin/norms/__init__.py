"""The mathematics of every norm, in plain torch.

    >>> from norm_plugin.norms import NORM_TYPES, build_norm
    >>> norm = build_norm("powernorm", 512, alpha_fwd=0.9, warmup_updates=8000)
    >>> y = norm(x, padding_mask=mask)  # x: (T, B, C), mask: (B, T), True at padding
    >>> y = norm(x.transpose(0, 1), mask, batch_first=True)  # x: (B, T, C), the same mask

Importing this package imports torch and nothing else. The norms are written in plain torch; those
that ``build_norm`` and ``replace_norms`` build compute by the faster kernels of their device, until
``norm_plugin.kernels.set_kernels(model, "off")``.

Every module of this folder is imported here, so a new norm is a new file and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil

from norm_plugin.norms.base.arguments import add_norm_arguments, norm_options
from norm_plugin.norms.base.contract import AffineNorm, Norm
from norm_plugin.norms.base.means import masked_means, update_running_average, zero_padding
from norm_plugin.norms.base.recomputation import is_recomputing
from norm_plugin.norms.base.registry import (
    NORM_TYPES,
    NormSpec,
    Option,
    build_norm,
    declared_options,
    norm_spec,
    register_norm,
)
from norm_plugin.norms.base.replacement import Replaced, load_replaced, replace_norms
from norm_plugin.norms.base.statistics import (
    BatchStatisticsNorm,
    set_accumulation,
    set_loss_scale,
    set_process_group,
)

__all__ = [
    "NORM_TYPES",
    "AffineNorm",
    "BatchStatisticsNorm",
    "Norm",
    "NormSpec",
    "Option",
    "Replaced",
    "add_norm_arguments",
    "build_norm",
    "declared_options",
    "is_recomputing",
    "load_replaced",
    "masked_means",
    "norm_options",
    "norm_spec",
    "register_norm",
    "replace_norms",
    "set_accumulation",
    "set_loss_scale",
    "set_process_group",
    "update_running_average",
    "zero_padding",
]

for _module in pkgutil.iter_modules(__path__):
    if not _module.ispkg:
        importlib.import_module(f"{__name__}.{_module.name}")
