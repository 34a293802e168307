"""Which version of the code trains a model; this imports no torch."""

from __future__ import annotations

import hashlib
from importlib.metadata import version

from norm_lab.paths import PLUGIN

CODE = ("declarations", "norms", "placements", "kernels", "models", "checkpoints")
"""The packages whose code a training runs."""
SOURCES = (".py", ".cpp", ".h", ".inc")


def code_digest() -> dict[str, str]:
    """Return a digest of our code that a training runs, and the versions of torch and fairseq."""
    files = [path for name in CODE for path in sorted((PLUGIN / name).rglob("*.*"))]
    sources = [path for path in files if path.suffix in SOURCES]
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    return {"norm_plugin": code, "torch": version("torch"), "fairseq": version("fairseq-fixed")}
