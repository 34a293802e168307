"""Which norms of a model ``replace_norms`` replaces."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from norm_plugin.norms.base.contract import Norm

NAMES = ("layernorm", "rmsnorm")
"""Endings of class names, in any case, that are replaced: LlamaRMSNorm, timm's RmsNorm."""
IN_ATTENTION = re.compile(r"(^|_)(q|k|v|qk|kv|query|key|value)(_|$)")
"""Names of norms of queries, keys and values: q_norm, query_layernorm, kv_a_layernorm."""
Patterns = str | Sequence[str] | None


class Place(NamedTuple):
    """A norm in a model; a shared one has several places.

    Attributes:
        parent, attribute: the module that holds the norm, and the name there.
        path: as in ``model.named_modules()``.
        old: the norm.
    """

    parent: nn.Module
    attribute: str
    path: str
    old: Any


def select(model: nn.Module, only: Patterns, keep: Patterns, batch_statistics: bool) -> list[Place]:
    """Return the norms of ``model`` to replace, in the order of ``model.named_modules()``.

    Args:
        only: patterns of paths, as in a shell; None: all.
        keep: patterns of paths that are left out.
        batch_statistics: the new norm has these, so norms of queries, keys and values are left out.

    Raises:
        ValueError: there is no such norm, a pattern matches no path, or the patterns select one
            place of a shared norm and not another.
    """
    places = list(_norms(model))
    if not places:
        done = any(isinstance(module, Norm) for module in model.modules())
        raise ValueError(
            f"{type(model).__name__} contains no LayerNorm and no RMSNorm; nothing was replaced"
            + ("; its norms are replaced already: build it anew" if done else "")
        )
    kept, wanted = _matched(places, keep), _matched(places, only)
    chosen = [
        place
        for place in places
        if place.path not in kept
        and (only is None or place.path in wanted)
        and not (batch_statistics and IN_ATTENTION.search(place.attribute))
    ]
    if not chosen:
        raise ValueError(
            f"of the norms of {type(model).__name__}, {_listed(places)}, only= and keep= leave "
            "none to replace; with batch statistics, norms of queries, keys and values stay"
        )
    ids = {id(place.old) for place in chosen}
    for place in places:
        if id(place.old) in ids and place not in chosen:
            raise ValueError(
                f"{place.path} is also at another path, which is replaced; only= and keep= must "
                "select all paths of a module, or none"
            )
    return chosen


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers, as those of peft, ``torch.compile`` and DataParallel.

    Such a forward does not name its arguments, or, in peft, lengthens the input.
    """
    base: Any = getattr(model, "get_base_model", None)
    if base is not None:
        return unwrapped(base())
    children = list(model.children())
    kinds = {each.kind for each in inspect.signature(model.forward).parameters.values()}
    names_none = kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return unwrapped(children[0]) if names_none and len(children) == 1 else model


def _norms(model: nn.Module) -> Iterator[Place]:
    for prefix, parent in model.named_modules():
        for attribute, child in parent._modules.items():  # not named_modules(): it skips repeats
            if _is_norm(child):
                yield Place(parent, attribute, f"{prefix}.{attribute}".lstrip("."), child)


def _is_norm(module: nn.Module | None) -> bool:
    """Return whether a module is to be replaced; modules with children (AdaLayerNorm) are not."""
    if module is None or isinstance(module, Norm) or any(True for _ in module.children()):
        return False
    named = type(module).__name__.lower().endswith(NAMES)
    return named or isinstance(module, (nn.LayerNorm, nn.RMSNorm))


def _matched(places: list[Place], patterns: Patterns) -> set[str]:
    """Return the paths that match a pattern; raise ValueError for a pattern that matches none."""
    matched = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns or ():
        found = {place.path for place in places if fnmatchcase(place.path, pattern)}
        if not found:
            raise ValueError(f"{pattern!r} matches none of the norms: {_listed(places)}")
        matched |= found
    return matched


def _listed(places: list[Place]) -> str:
    """Return the paths as text, merging those that differ only in the number of their layer."""
    return ", ".join(dict.fromkeys(re.sub(r"\b\d+\b", "*", place.path) for place in places))
