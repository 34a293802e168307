"""The parts of the name of an arm in stored results."""

from __future__ import annotations

from collections.abc import Iterable

from norm_lab.run.record import Changes, part_of_name, parts_of_name


def short_label(label: str, changes: Changes, left_out: Iterable[str]) -> str:
    """Return the ``label`` of a run with ``changes``, without the changes in ``left_out``."""
    for key in left_out:
        label = label.replace(f"-{part_of_name(key, changes[key])}", "", 1)
    return label


def norm_of_label(label: str, changes: Changes) -> str:
    """Return the norm at the start of the label of a run with ``changes``."""
    parts = parts_of_name(changes)
    return label.partition(f"-{parts[0]}")[0] if parts else label
