"""The keys of fairseq's own groups of settings, read from its source: its import takes seconds."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ALL_GROUPS = "FairseqConfig"
"""The class whose fields are the groups."""


@cache
def keys_of_groups() -> dict[str, set[str]]:
    """Return the keys of each group that is the same for all trainings, such as ``optimization``.

    Those of the model, the task and other components are their own.
    """
    spec = find_spec("fairseq")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).with_name("dataclass") / "configs.py"
    classes = [each for each in ast.parse(source.read_bytes()).body if type(each) is ast.ClassDef]
    fields = {each.name: _fields(each) for each in classes}
    return {
        group: set(fields[kind]) for group, kind in fields[ALL_GROUPS].items() if kind in fields
    }


def _fields(cls: ast.ClassDef) -> dict[str, str]:
    """Return the fields of a dataclass, each with its type."""
    return {
        ast.unparse(node.target): ast.unparse(node.annotation)
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
    }
