"""The name of a run: its norm, and in readable words what differs from the recipe.

``powernorm``, ``powernorm-released``, ``powernorm-layer-scale-groups-0``, ``adanorm-kaiming``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Differences = dict[str, Any]

BY_VALUE = ("placement", "init", "variant", "-name")
"""Settings whose values need no name beside them; ``_name`` is the last one."""
LOGGING = (
    *("aim_repo", "aim_run_hash", "azureml_logging", "log_file", "log_format", "log_interval"),
    *("no_progress_bar", "tensorboard_logdir", "wandb_project"),
)
"""Keys of ``common`` that say what is shown of a training, and change nothing of it."""
MOST_CHARACTERS = 120  # a file name may have 255, and more is put around this one
UNUSUAL = re.compile(r"[^A-Za-z0-9._]+")


def without_logging(flags: Sequence[str]) -> list[str]:
    """Flags of ``fairseq-train`` without those of ``LOGGING`` and their values."""
    logging_flags = {"--" + key.replace("_", "-") for key in LOGGING}
    others, is_logging = [], False
    for argument in flags:
        if argument.startswith("--"):
            is_logging = argument.partition("=")[0] in logging_flags
        if not is_logging:
            others.append(argument)
    return others


def flag_settings(flags: Sequence[str]) -> Differences:
    """Flags of ``fairseq-train`` as settings; a flag without a value is True."""
    values: dict[str, list[str]] = {}
    key = ""
    for argument in without_logging(flags):
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            values[key] = [value] if equals else []
        else:
            values.setdefault(key, []).append(argument)
    return {
        key: True if not given else given[0] if len(given) == 1 else given
        for key, given in values.items()
    }


def run_label(norm: str, settings: Mapping[str, Any]) -> str:
    """The norm and what ``settings`` say, fit for a file name.

    Where characters are replaced or the name is cut, a hash keeps two names apart.
    """
    parts = _parts(settings)
    label = "-".join([norm, *map(_fit, parts)])[:MOST_CHARACTERS]
    if label != "-".join([norm, *parts]):
        exact = "\0".join([norm, *(f"{key}={settings[key]}" for key in sorted(settings))])
        label += "-" + hashlib.sha256(exact.encode()).hexdigest()[:6]
    return label


def common_settings(settings: Iterable[Mapping[str, Any]]) -> Differences:
    """The settings that all of several arms share; none where there is one arm."""
    arms = list(settings)
    missing = object()
    return {
        key: value
        for key, value in (arms[0] if len(arms) > 1 else {}).items()
        if all(arm.get(key, missing) == value for arm in arms)
    }


def short_label(label: str, settings: Mapping[str, Any], left_out: Iterable[str]) -> str:
    """The label of a run with ``settings`` without the parts of those in ``left_out``."""
    for key in left_out:
        label = label.replace(f"-{_fit(_part(key, settings[key]))}", "", 1)
    return label


def norm_of_label(label: str, settings: Mapping[str, Any]) -> str:
    """The norm at the start of the label of a run with ``settings``."""
    parts = _parts(settings)
    return label.partition(f"-{_fit(parts[0])}")[0] if parts else label


def _parts(settings: Mapping[str, Any]) -> list[str]:
    """The parts of a label; those without a name come first."""
    keys = sorted(settings, key=lambda key: (_short(key) not in BY_VALUE, key))
    return [_part(key, settings[key]) for key in keys]


def _part(key: str, value: Any) -> str:
    """One setting: ``released``, ``alpha-fwd-0.95``, ``fp16``, ``no-share-all-embeddings``."""
    name = _short(key)
    if value is None:  # the recipe has another value, and the run that of the norm's own default
        return f"default-{name}"
    if isinstance(value, str) and name in BY_VALUE:
        return value
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    if isinstance(value, list):
        value = "-".join(map(str, value))
    return f"{name}-{value}"


def _short(key: str) -> str:
    return key.rpartition(".")[2].replace("_", "-").removeprefix("norm-")


def _fit(part: str) -> str:
    """A part of a label, fit for a file name."""
    return UNUSUAL.sub("-", part).strip("-")
