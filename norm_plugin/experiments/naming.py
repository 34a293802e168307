"""The name of a run: its norm, and in readable words what differs from the recipe.

``powernorm``, ``powernorm-released``, ``powernorm-layer-scale-groups-0``, ``adanorm-kaiming``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from norm_plugin.experiments.gpus import AUTO, Recipe
from norm_plugin.norms import norm_spec

Differences = dict[str, Any]

BY_VALUE = ("placement", "init", "variant", "-name")
"""Settings whose values are words that need no name beside them; ``_name`` is the last one."""
NAMED_ELSEWHERE = {"common.seed", "common.user_dir", "model.norm_type"}
KIND = "_name"
"""Of the component that a group of settings belongs to, such as a learning-rate schedule."""
WITHOUT_EFFECT = "model.norm_record"
"""How settings begin that change nothing of what is trained: those of the recorder."""
LOGGING = {
    "aim_repo",
    "aim_run_hash",
    "azureml_logging",
    "log_file",
    "log_format",
    "log_interval",
    "no_progress_bar",
    "tensorboard_logdir",
    "wandb_project",
}
"""Keys of ``common`` that say what is shown of a training, and change nothing of it."""
MOST_CHARACTERS = 120  # a file name may have 255, and more is put around this one
UNUSUAL = re.compile(r"[^A-Za-z0-9._]+")


def differences(recipe: Recipe, base: Recipe) -> Differences:
    """The settings of ``recipe`` that differ from those of ``base``, by their dotted names.

    One that only ``base`` has is None here. It is left out where the group belongs to another
    component, which has other settings.
    """
    found = {
        f"{group}.{key}": value
        for group in recipe
        for key, value in recipe[group].items()
        if value != base.get(group, {}).get(key)
    }
    for group, settings in base.items():
        ours = recipe.get(group, {})
        if f"{group}.{KIND}" not in found:
            gone = [key for key in settings if key not in ours and settings[key] is not None]
            found |= {f"{group}.{key}": None for key in gone}
    return {key: value for key, value in found.items() if _is_named(key)}


def _is_named(setting: str) -> bool:
    shown = {f"common.{key}" for key in LOGGING}
    return setting not in NAMED_ELSEWHERE | shown and not setting.startswith(WITHOUT_EFFECT)


def without_defaults(recipe: Recipe, norm: str) -> Recipe:
    """``recipe`` with null for each option of its norm that has the value of its default.

    ``norm_variant=paper`` and no ``norm_variant`` are then one run.
    """
    from norm_plugin.models.flags import CHOICES  # it imports fairseq

    model = dict(recipe["model"])
    for option in norm_spec(norm).options:
        value = model.get(f"norm_{option.name}")
        if value is not None and option.parse(value) == option.default:
            model[f"norm_{option.name}"] = None
    for key, choice in CHOICES.items():
        if choice.default is not None and model.get(key) == choice.default:
            model[key] = None
    return {**recipe, "model": model}


def without_logging(flags: Sequence[str]) -> list[str]:
    """Flags of ``fairseq-train`` without those of ``LOGGING`` and their values."""
    names = {"--" + key.replace("_", "-") for key in LOGGING}
    left, logging = [], False
    for word in flags:
        if word.startswith("--"):
            logging = word.partition("=")[0] in names
        if not logging:
            left.append(word)
    return left


def flag_settings(flags: Sequence[str]) -> Differences:
    """Flags of ``fairseq-train`` as settings; a flag without a value is True."""
    values: dict[str, list[str]] = {}
    key = ""
    for word in without_logging(flags):
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            values[key] = [value] if equals else []
        else:
            values.setdefault(key, []).append(word)
    return {
        key: True if not words else words[0] if len(words) == 1 else words
        for key, words in values.items()
    }


def run_label(norm: str, settings: Mapping[str, Any]) -> str:
    """The norm and what ``settings`` say, fit for a file name.

    Where characters are replaced or the name is cut, a hash keeps two names apart.
    """
    words = [_words(key, settings[key]) for key in sorted(settings, key=_place)]
    plain = "-".join([norm, *words])
    label = "-".join([norm, *map(_fit, words)])
    label = label[:MOST_CHARACTERS]
    if label != plain:
        exact = "\0".join([norm, *(f"{key}={settings[key]}" for key in sorted(settings))])
        label += "-" + hashlib.sha256(exact.encode()).hexdigest()[:6]
    return label


def short_label(label: str, settings: Mapping[str, Any], left_out: Iterable[str]) -> str:
    """The label of a run with ``settings`` without the words of those in ``left_out``."""
    for key in left_out:
        label = label.replace(f"-{_fit(_words(key, settings[key]))}", "", 1)
    return label


def norm_of_label(label: str, settings: Mapping[str, Any]) -> str:
    """The norm at the start of the label of a run with ``settings``."""
    words = [_words(key, settings[key]) for key in sorted(settings, key=_place)]
    return label.partition(f"-{_fit(words[0])}")[0] if words else label


def workers_label(gpus: str, change_batch: bool, on_cpu: bool) -> str:
    """What follows the name of a run on several workers: ``-8gpus``, ``-2workers-batch``.

    They are another run: the batch may be another, and each has its statistics.
    """
    if gpus in (AUTO, "1"):
        return ""
    kind = "workers" if on_cpu else "gpus"
    return f"-{gpus}{kind}" + ("-batch" if change_batch else "")


def _fit(word: str) -> str:
    """A word of a label, fit for a file name."""
    return UNUSUAL.sub("-", word).strip("-")


def _short(key: str) -> str:
    return key.rpartition(".")[2].replace("_", "-").removeprefix("norm-")


def _place(key: str) -> tuple[bool, str]:
    """Words come before names with values."""
    return _short(key) not in BY_VALUE, key


def _words(key: str, value: Any) -> str:
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
