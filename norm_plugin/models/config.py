"""fairseq's configuration of a Transformer with a field for each flag of this plugin."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from norm_plugin.declarations import flags
from norm_plugin.models.plan import LAYERNORM, Plan
from norm_plugin.models.settle import as_namespace, choices_of, settle
from norm_plugin.models.sites import SIDES
from norm_plugin.norms import NORM_TYPES, declared_options, norm_spec
from norm_plugin.placements import PLACEMENTS

logger = logging.getLogger(__name__)

NESTED = ("encoder", "decoder", "quant_noise")
"""fairseq's groups of settings; on a command line and in YAML their names are flat."""
KERNELS_FOUND = "norm_kernels_found"
"""The key under which a run stores, for readers, what computed its norms."""


class NormConfig(TransformerConfig):
    """fairseq's configuration, with the plan that was made from it. It adds no field."""

    plan: Plan  # not a dataclass field: this class has no decorator

    def __reduce__(self) -> Any:
        """Support pickle, which does not find a class that :func:`config_class` made."""
        return _restored, (vars(self),)


def _restored(values: dict[str, Any]) -> NormConfig:
    cfg: NormConfig = config_class()()
    cfg.__dict__.update(values)
    return cfg


def config_class(stock: Any = NormConfig) -> Any:
    """Return the settings ``stock`` of a fairseq model, with a field for each of our flags.

    Norms and placements that were registered after import have their flags too. Every field except
    ``norm_type`` is None when not given.
    """
    return _config_class(stock, (*map(norm_spec, NORM_TYPES), *PLACEMENTS.values()))


@functools.cache
def _config_class(stock: Any, registered: tuple[Any, ...]) -> Any:
    """Return the class for what is ``registered``, which determines its fields."""
    names: Any = ChoiceEnum(list(NORM_TYPES))
    fields = [(flags.NORM_TYPE, names, _field(LAYERNORM, flags.NORM_TYPE_HELP))]

    def add(key: str, kind: Any, text: str) -> None:
        # Optional[...]: OmegaConf 2.0 does not know X | None
        fields.append((key, Optional[kind], _field(None, text)))  # noqa: UP045

    for key, choice in flags.CHOICES.items():
        add(key, ChoiceEnum(choices_of(key)), choice.help)
    for key, value in flags.VALUES.items():
        add(key, value.type, value.help)
    for flag, text in flags.SITE_FLAGS.items():
        add(flags.norm_type_field(flag), names, text)
    for name, owners in declared_options().items():
        option = owners[0][1]
        choices = list(dict.fromkeys(choice for _, form in owners for choice in form.choices))
        if not all(form.choices for _, form in owners):  # each norm checks its own
            choices = []
        text = f"{option.help} [{', '.join(owner for owner, _ in owners)}]"
        add(flags.option_field(name), ChoiceEnum(choices) if choices else option.type, text)
    return dataclasses.make_dataclass("NormTransformerConfig", fields, bases=(stock,))


def _field(default: str | None, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


def build_config(args: argparse.Namespace | DictConfig, sides: Sequence[str] = SIDES) -> NormConfig:
    """Return the typed configuration of a model, with its plan; raise as :func:`settle`.

    Args:
        args: the flat Namespace of a command line, or the ``model`` node of a YAML file.
    """
    plan = settle(args, sides)
    cfg: NormConfig = config_class().from_namespace(as_namespace(args))
    cfg.plan = plan
    for side, layers in plan.layers.items():
        stack = getattr(cfg, side)
        if stack.layers_to_keep:  # not every fairseq model does so
            stack.layers = len(layers)
    return cfg


def flatten(settings: DictConfig) -> None:
    """Replace fairseq's nested groups, which stock checkpoints may store, by flat keys.

    ``encoder: {layers: 2}`` becomes ``encoder_layers: 2``.
    """
    for group in NESTED:
        if OmegaConf.is_config(nested := settings.get(group)):
            del settings[group]
            settings.update({f"{group}_{key}": nested[key] for key in nested if key != "_name"})


def check_keys(
    values: Mapping[str, Any],
    filled_in: Iterable[str],
    stock: type[FairseqDataclass] = NormConfig,
) -> None:
    """Raise ValueError for a key of YAML that the model does not have.

    fairseq does not check the keys of a model without a registered dataclass.

    Args:
        filled_in: the keys that the stock architecture function fills in.
        stock: the settings of fairseq's model.
    """
    cls = config_class(stock)
    known = {"_name", "arch", KERNELS_FOUND, *filled_in}
    for field in dataclasses.fields(cls):
        if field.name in NESTED:
            inner = dataclasses.fields(getattr(cls(), field.name))
            known.update(f"{field.name}_{setting.name}" for setting in inner)
        else:
            known.add(field.name)
    if unknown := sorted(set(values) - known):
        raise ValueError("; ".join(_about_unknown(key, known) for key in unknown))


def _about_unknown(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, n=3)
    return f"unknown model key {key}" + (f"; the nearest are {', '.join(near)}" if near else "")
