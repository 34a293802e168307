"""The name of a run: ``powernorm``, ``powernorm-layer-scale-groups-0``, ``adanorm-kaiming``.

It is the norm and the settings that differ from the experiment's, in a form for file names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from norm_lab.metrics.flags import Differences

BY_VALUE = ("placement", "init", "variant", "-name")
"""Settings that a label shows by their value only; ``-name`` is the short form of ``_name``."""
MAX_LABEL_LENGTH = 120  # a file name may have 255 characters, and the label is part of it
UNUSUAL = re.compile(r"[^A-Za-z0-9._]+")


def run_label(norm: str, settings: Mapping[str, Any]) -> str:
    """Return a label for file names: the norm and the settings.

    If characters are replaced or the label is cut, a hash keeps labels distinct.
    """
    parts = _parts(settings)
    label = "-".join([norm, *map(_file_safe, parts)])[:MAX_LABEL_LENGTH]
    if label != "-".join([norm, *parts]):
        exact = "\0".join([norm, *(f"{key}={settings[key]}" for key in sorted(settings))])
        label += "-" + hashlib.sha256(exact.encode()).hexdigest()[:6]
    return label


def common_settings(settings: Iterable[Mapping[str, Any]]) -> Differences:
    """Return the settings that several arms share; none for a single arm."""
    arms = list(settings)
    missing = object()
    return {
        key: value
        for key, value in (arms[0] if len(arms) > 1 else {}).items()
        if all(arm.get(key, missing) == value for arm in arms)
    }


def short_label(label: str, settings: Mapping[str, Any], left_out: Iterable[str]) -> str:
    """Return the ``label`` of a run with ``settings``, without the settings in ``left_out``."""
    for key in left_out:
        label = label.replace(f"-{_file_safe(_part(key, settings[key]))}", "", 1)
    return label


def norm_of_label(label: str, settings: Mapping[str, Any]) -> str:
    """Return the norm at the start of the label of a run with ``settings``."""
    parts = _parts(settings)
    return label.partition(f"-{_file_safe(parts[0])}")[0] if parts else label


def _parts(settings: Mapping[str, Any]) -> list[str]:
    """Return the parts of a label; settings that are shown by their value alone come first."""
    keys = sorted(settings, key=lambda key: (_short_key(key) not in BY_VALUE, key))
    return [_part(key, settings[key]) for key in keys]


def _part(key: str, value: Any) -> str:
    """Return one setting as text: ``released``, ``alpha-fwd-0.95``, ``fp16``."""
    name = _short_key(key)
    if value is None:  # the experiment sets a value, and the run has the norm's default
        return f"default-{name}"
    if isinstance(value, str) and name in BY_VALUE:
        return value
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    if isinstance(value, list):
        value = "-".join(map(str, value))
    return f"{name}-{value}"


def _short_key(key: str) -> str:
    return key.rpartition(".")[2].replace("_", "-").removeprefix("norm-")


def _file_safe(part: str) -> str:
    """Return a part of a label without the characters that file names should not have."""
    return UNUSUAL.sub("-", part).strip("-")
