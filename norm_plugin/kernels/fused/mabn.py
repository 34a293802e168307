"""MABN; what it does with its windows stays in ``norms/mabn.py``."""

from __future__ import annotations

from norm_plugin.kernels.autograd.window import window_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.norms.mabn import MovingAverageBatchNorm

fuses(MovingAverageBatchNorm)(window_norm)
