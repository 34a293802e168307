"""Normalization layers for fairseq Transformers: the folder to give to ``--user-dir``.

fairseq imports its ``--user-dir`` by this name. Importing the package then registers the model
``norm_transformer`` and its architectures. Without fairseq nothing is registered, so that
:mod:`norm_plugin.norms` works in any torch script. A script that imports this package before
fairseq, and needs the models, imports :mod:`norm_plugin.models`.
"""

from __future__ import annotations

import sys

__version__ = "0.1.0"

if __name__ != "norm_plugin":
    raise ImportError(
        f"this folder is imported as {__name__}, but its files import each other as norm_plugin; "
        "rename the folder to norm_plugin"
    )

# fairseq imports the models/ of a --user-dir only if the package was not imported by name before,
# for example by another plugin. So the registrations are not left to fairseq.
if sys.modules.get("fairseq") is not None:
    from norm_plugin import models as models
