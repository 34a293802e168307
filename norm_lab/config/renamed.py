"""New and old names of the model's settings, in overrides and in flags.

``norm_plugin/models/flags.py`` declares them. Whatever is stored of a run has the old names. So a
run by the new ones is the same run, and is compared with older results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from norm_lab.run.flags import Configuration, flag_of
from norm_plugin.io.command_line import CommandError


def stored_overrides(overrides: Sequence[str]) -> list[str]:
    """Overrides with the old names of the settings of ``model``.

    Such an override replaces what a file gives by either name.

    Raises:
        CommandError: both names of a setting are overridden, with different values.
    """
    from norm_plugin.models.flags import RENAMED_KEYS, stored_key  # it imports fairseq

    changed: list[str] = []
    given: dict[str, dict[str, str]] = {}
    for override in overrides:
        name, equals, value = override.lstrip("+").partition("=")
        group, _, setting = name.partition(".")
        key = stored_key(setting)
        if group != "model" or key not in RENAMED_KEYS or not equals:
            changed.append(override)
            continue
        given.setdefault(key, {})[name] = value
        changed += [f"++model.{key}={value}", f"++model.{RENAMED_KEYS[key]}=null"]
    for values in given.values():
        _check_one_value(values)
    return changed


def use_stored_keys(config: Configuration) -> None:
    """Replace new names of settings of ``model`` by the old ones, in place.

    Raises:
        CommandError: a file gives both names of a setting, with different values.
    """
    from norm_plugin.models import flags  # it imports fairseq

    try:
        flags.use_stored_keys(config.get("model", {}))
    except ValueError as error:
        raise CommandError(str(error)) from error


def shown_flags(flags: Sequence[str]) -> list[str]:
    """Flags of ``fairseq-train`` with the new names of those of the model."""
    from norm_plugin.models.flags import RENAMED_KEYS  # it imports fairseq

    names = {flag_of(old): flag_of(new) for old, new in RENAMED_KEYS.items()}
    return [names.get(flag, flag) for flag in flags]


def _check_one_value(given: Mapping[str, Any]) -> None:
    from norm_plugin.models.flags import check_one_value

    try:
        check_one_value(given)
    except ValueError as error:
        raise CommandError(str(error)) from error
