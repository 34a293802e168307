"""Command-line flags for norms in any training script: ``--norm-type`` and every norm's options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from norm_plugin.declarations.option import OptionValue
from norm_plugin.norms.base.registry import NORM_TYPES, declared_options, norm_spec


def add_norm_arguments(parser: argparse.ArgumentParser, default: str = "layernorm") -> None:
    """Add ``--norm-type`` and ``--norm-<option>`` for every option of every norm to ``parser``."""
    group = parser.add_argument_group("norm")
    group.add_argument(
        "--norm-type",
        choices=NORM_TYPES,
        default=default,
        metavar="NORM",
        help=f"{', '.join(NORM_TYPES)} (default: %(default)s)",
    )
    for owners in declared_options().values():
        # one meaning each, with the norms that give it that meaning
        meanings = {option.help: "" for _, option in owners}
        for norm, option in owners:
            meanings[option.help] += f"{', ' if meanings[option.help] else ''}{norm}"
        text = "; ".join(f"{norms}: {meaning}" for meaning, norms in meanings.items())
        group.add_argument(
            owners[0][1].flag,
            metavar=owners[0][1].type.__name__.upper(),
            help=text.replace("%", "%%"),
        )


def norm_options(
    args: argparse.Namespace, defaults: Mapping[str, Mapping[str, OptionValue]] | None = None
) -> dict[str, Any]:
    """Return the options of norm ``args.norm_type``, as :func:`build_norm` takes them.

    Args:
        args: parsed by a parser that :func:`add_norm_arguments` extended.
        defaults: by norm, the values of options that the command line does not give.

    Raises:
        ValueError: the norm has no such option, or a value is not allowed.
    """
    flags = {name: getattr(args, f"norm_{name}") for name in declared_options()}
    given = {name: value for name, value in flags.items() if value is not None}
    options = {**(defaults or {}).get(args.norm_type, {}), **given}
    return norm_spec(args.norm_type).parse(options)
