"""Which entries of a model's state are running statistics, as its norms declare them."""

from __future__ import annotations

from functools import cache

from norm_plugin.checkpoints.files import State
from norm_plugin.norms import NORM_TYPES, NormSpec, norm_spec

# Of --running-stats: see the head of average.py.
MODES = ("average", "last", "reestimate")
_DIM = 8  # of the norms built here to read their buffers; every width has the same


def batch_norm_specs() -> list[NormSpec]:
    """The registered norms with batch statistics, those of an imported --user-dir among them."""
    return [spec for spec in map(norm_spec, NORM_TYPES) if spec.batch_statistics]


def running_statistics(model: State) -> set[str]:
    """Names of the entries of a model's state that are running statistics of its norms.

    Those are the floating buffers of its norms with batch statistics. A module counts as such a
    norm where it has every buffer that the norm declares, its count of updates among them, so a
    parameter, or a statistic of a module from elsewhere, is not taken for one by its name.
    """
    modules: dict[str, dict[str, str]] = {}
    for entry in model:
        module, _, name = entry.rpartition(".")
        modules.setdefault(module, {})[name] = entry
    declared = [_buffer_names(spec) for spec in batch_norm_specs()]
    return {
        entries[name]
        for entries in modules.values()
        for buffers in declared
        if buffers <= set(entries)
        for name in buffers
        if model[entries[name]].is_floating_point()
    }


@cache
def _buffer_names(spec: NormSpec) -> frozenset[str]:
    return frozenset(name for name, _ in spec.build(_DIM).named_buffers(recurse=False))
