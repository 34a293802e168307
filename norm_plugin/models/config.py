"""The configuration of ``norm_transformer``: fairseq's own, and what the norms declare."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf

from norm_plugin.kernels import AUTO, KERNELS, VARIABLE, describe, resolve
from norm_plugin.listing import declared_options
from norm_plugin.models.initialization import INITIALIZATIONS, XAVIER
from norm_plugin.models.placement import PLACEMENTS
from norm_plugin.models.resuming import ALLOW
from norm_plugin.models.sites import (
    IDENTITY,
    SITE_FLAGS,
    Site,
    check_site_flags,
    chosen_specs,
    norm_type_field,
    norm_type_of,
    option_field,
    present_sites,
)
from norm_plugin.norms import NORM_TYPES, norm_spec

NESTED = ("encoder", "decoder", "quant_noise")


class Choice(NamedTuple):
    """A flag of the model that takes one of a few words."""

    values: Iterable[str]
    default: str | None
    help: str


CHOICES = {
    "norm_placement": Choice(
        PLACEMENTS, None, "where norms stand; sets --{encoder,decoder}-normalize-before"
    ),
    "norm_init": Choice(
        INITIALIZATIONS,
        XAVIER,
        "weights at the start: xavier (fairseq's own), kaiming (every linear map of a layer, as "
        "the AdaNorm paper advises), kaiming-attention (attention only, the part that its released "
        "code's km changes)",
    ),
    "norm_nan_check": Choice(
        ("on", "off"), "on", "stop training where the input of a norm is NaN or infinite"
    ),
    "norm_kernels": Choice(
        KERNELS,
        AUTO,
        "what computes the norms: auto (the device's own kernels, else plain torch), off (plain "
        f"torch), cpu, triton, compile (torch.compile); {VARIABLE} in the environment wins",
    ),
    ALLOW: Choice(
        ("on", "off"),
        "off",
        "train on from a checkpoint of another norm, option or placement, as far as its weights "
        "fit; without it that is an error",
    ),
}
"""The model's own flags besides those of sites and of norms."""

KERNELS_FOUND = "norm_kernels_found"
"""Stored with a run beside its flags, for the reader: what computed its norms."""


def config_class() -> type[TransformerConfig]:
    """fairseq's TransformerConfig with a field for each flag of this plugin.

    It is made anew at each call, so that norms registered after import have their flags too.
    Every field but ``norm_type`` is None when not given.
    """
    names: Any = ChoiceEnum(list(NORM_TYPES))
    fields = [
        ("norm_type", names, _field("layernorm", "norm of every site of the model")),
    ]
    for name, choice in CHOICES.items():
        words: Any = ChoiceEnum(list(choice.values))
        # Optional[...], here and below: OmegaConf 2.0 does not know X | None
        fields.append((name, Optional[words], _field(None, choice.help)))  # noqa: UP045
    for flag, text in SITE_FLAGS.items():
        fields.append((norm_type_field(flag), Optional[names], _field(None, text)))  # noqa: UP045
    for name, owners in declared_options().items():
        option = owners[0][1]
        kind: Any = ChoiceEnum(list(option.choices)) if option.choices else option.type
        text = f"{option.help} [{', '.join(owner for owner, _ in owners)}]"
        fields.append((option_field(name), Optional[kind], _field(None, text)))  # noqa: UP045
    return dataclasses.make_dataclass("NormTransformerConfig", fields, bases=(TransformerConfig,))


def _field(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


def build_config(args: Any) -> TransformerConfig:
    """The checked, typed configuration of a run.

    Args:
        args: the flat Namespace of a command line, or the ``model`` node of a YAML file.

    Raises:
        ValueError: an unknown key, norm or option, or an option that no chosen norm has.
    """
    cls = config_class()
    if OmegaConf.is_config(args):
        values: Any = OmegaConf.to_container(args, resolve=True)
        _reject_unknown_keys(values, cls)
        args = argparse.Namespace(**values)
    for flag in ["", *SITE_FLAGS]:
        name = getattr(args, norm_type_field(flag) if flag else "norm_type", None)
        if name is not None:
            norm_spec(name)
    cfg = cls.from_namespace(args)
    _parse_choices(cfg)
    check_site_flags(cfg)
    _parse_options(cfg)
    return cfg


def store_choices(args: Any, cfg: TransformerConfig) -> None:
    """Write the norm of every site back into ``args``, which fairseq stores with the run."""
    for site in present_sites(cfg):
        if site.flag != "embedding":  # one flag, but two sites, which may differ
            setattr(args, norm_type_field(site.flag), norm_type_of(cfg, site))
    for name in CHOICES:
        setattr(args, name, getattr(cfg, name))
    setattr(args, KERNELS_FOUND, describe(resolve(cfg.norm_kernels)))


def store_folded(args: Any, sites: Iterable[Site]) -> None:
    """Write into ``args``, the stored settings of a run, that the norms of ``sites`` are gone.

    Options that no norm is left to take are unset, as a model refuses them.
    """
    for site in sites:
        setattr(args, norm_type_field(site.flag), IDENTITY)
    left = chosen_specs(config_class().from_namespace(args))
    for name, owners in declared_options().items():
        if not any(norm_spec(owner) in left for owner, _ in owners):
            setattr(args, option_field(name), None)


def _parse_choices(cfg: Any) -> None:
    """Fill in the defaults; refuse other words, which only a YAML file can bring here."""
    for name, choice in CHOICES.items():
        value = getattr(cfg, name, None)
        if isinstance(value, bool):  # YAML reads on and off as such
            value = "on" if value else "off"
        if value is not None and value not in choice.values:
            raise ValueError(f"{name} is {value!r}; choose from {', '.join(choice.values)}")
        setattr(cfg, name, choice.default if value is None else str(value))


def _parse_options(cfg: Any) -> None:
    """Give the options of the chosen norms their types; refuse options of other norms."""
    chosen = chosen_specs(cfg)
    for name, owners in declared_options().items():
        value = getattr(cfg, option_field(name), None)
        if value is None:
            continue
        taking = [option for owner, option in owners if norm_spec(owner) in chosen]
        if not taking:
            raise ValueError(
                f"--{option_field(name).replace('_', '-')} is an option of "
                f"{', '.join(owner for owner, _ in owners)}, but the chosen norms are "
                f"{', '.join(spec.name for spec in chosen)}: drop it, or choose such a norm"
            )
        for option in taking:
            setattr(cfg, option_field(name), option.parse(value))


def _reject_unknown_keys(values: dict[str, Any], cls: type[TransformerConfig]) -> None:
    """fairseq checks no key of a model without a registered dataclass; a slip would be lost."""
    nested = [key for key in NESTED if key in values]
    if nested:
        raise ValueError(
            f"model.{nested[0]} is a nested group; write flat keys such as "
            f"model.{nested[0]}_{'pq' if nested[0] == 'quant_noise' else 'layers'}"
        )
    known = {"_name", "arch", KERNELS_FOUND}
    for field in dataclasses.fields(cls):
        if field.name in NESTED:
            inner = dataclasses.fields(getattr(cls(), field.name))
            known.update(f"{field.name}_{one.name}" for one in inner)
        else:
            known.add(field.name)
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError("; ".join(_about_unknown(key, known) for key in unknown))


def _about_unknown(key: str, known: Iterable[str]) -> str:
    """What to say of a key that no model has: the nearest ones that it has."""
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    if near:
        return f"unknown model key {key}; the nearest are {', '.join(near)}"
    norms = [name for name in sorted(known) if name.startswith("norm_")]
    return (
        f"unknown model key {key}; the keys of the norms are {', '.join(norms)}, and the others "
        "those of fairseq's transformer"
    )
