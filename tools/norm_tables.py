"""What the norms declare, as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from markdown_table import markdown
from norm_plugin.models.config import site_flags
from norm_plugin.norms import NORM_TYPES, Option, declared_options, norm_spec

_CHANNELS = 960  # of the norms that the table counts; no other size of theirs is as large


def norms_table() -> str:
    """Markdown: a row a norm."""
    rows = [
        (
            *("`--norm-type`", "formula", "paper", "sites of `--norm-type`", "gradient"),
            *("parameters", "statistics", "how its released code differs", "paper read"),
        )
    ]
    for name in NORM_TYPES:
        spec = norm_spec(name)
        sites = "encoder; the decoder keeps layernorm" if spec.batch_statistics else "all"
        gradient = "exact" if spec.cls.exact_gradient else "by design not exact"
        norm = spec.build(_CHANNELS)
        parameters = _shapes(norm.named_parameters())
        statistics = _shapes(norm.named_buffers())
        rows.append(
            (
                *(f"`{name}`", f"`{spec.formula}`", spec.paper, sites, gradient),
                *(parameters, statistics, spec.released or "-", _yes(spec.paper_read)),
            )
        )
    return markdown(rows)


def front_table(names: Sequence[str]) -> str:
    """Markdown: name, formula and paper of the norms ``names``, and whether the paper was read."""
    rows = [("norm", "formula", "paper", "paper read")]
    for name in names:
        spec = norm_spec(name)
        rows.append((f"`{name}`", f"`{spec.formula}`", spec.paper, _yes(spec.paper_read)))
    return markdown(rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _shapes(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """``weight (C), eta (1)``; a counter, which is no statistic, is left out."""
    words = {_CHANNELS: "C"}
    named = [
        f"{name} ({', '.join(str(words.get(size, size)) for size in tensor.shape) or '1'})"
        for name, tensor in tensors
        if tensor.is_floating_point()
    ]
    return ", ".join(named) or "none"


def options_table() -> str:
    """Markdown: a row for each meaning of an option, with the norms that give it that meaning."""
    rows = [("flag", "type", "default", "norms", "meaning")]
    for owners in declared_options().values():
        for meaning in dict.fromkeys(option.help for _, option in owners):
            own = [(name, option) for name, option in owners if option.help == meaning]
            option = own[0][1]
            names = ", ".join(name for name, _ in own)
            kind = option.type_name
            rows.append((f"`{option.flag}`", kind, _defaults(own), names, meaning))
    return markdown(rows)


def sites_table() -> str:
    """Markdown: the flags that choose norms and their place."""
    rows = [("flag", "meaning")]
    rows += [(f"`{flag}`", text) for flag, text in site_flags()]
    return markdown(rows)


def _defaults(owners: list[tuple[str, Option]]) -> str:
    values = {option.default for _, option in owners}
    if len(values) == 1:
        return str(values.pop())
    return ", ".join(f"{option.default} ({name})" for name, option in owners)
