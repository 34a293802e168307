"""Normalization layers for fairseq Transformers: the folder to give to ``--user-dir``.

Importing the package registers the model ``norm_transformer`` and its architectures with
fairseq where fairseq is installed. The norms alone, :mod:`norm_plugin.norms`, need only torch.
"""

from __future__ import annotations

import argparse
import importlib.util

import torch

from norm_plugin import kernels as kernels  # from here on build_norm gives fused forms

__version__ = "0.1.0"

# torch >= 2.6 loads checkpoints with weights_only=True, and fairseq stores the flags of a
# command line as a Namespace. Naming that one class keeps the safe loader on.
torch.serialization.add_safe_globals([argparse.Namespace])

# fairseq skips a plugin's models/ when the package was imported by name before, so the
# registrations are imported here and not left to fairseq.
if importlib.util.find_spec("fairseq") is not None:
    from norm_plugin import models as models
