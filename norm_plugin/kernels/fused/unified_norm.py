"""Unified Normalization; what it does with its windows stays in ``norms/unified_norm.py``."""

from __future__ import annotations

from norm_plugin.kernels.autograd.window import window_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.norms.unified_norm import UnifiedNorm

fuses(UnifiedNorm)(window_norm)
