"""What the norms declare, as text for a terminal and as Markdown for the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torch import Tensor

from norm_plugin.norms import NORM_TYPES, Option, declared_options, norm_spec

_CHANNELS = 960  # of the norms that the table counts; no other size of theirs is as large


def flag_of(option: Option) -> str:
    """The command-line flag of an option: ``alpha_fwd`` -> ``--norm-alpha-fwd``."""
    return "--norm-" + option.name.replace("_", "-")


def norm_text(name: str) -> str:
    """Name, formula and paper of a norm, and a line for each of its options."""
    spec = norm_spec(name)
    lines = [name, f"    {spec.formula}", f"    {spec.paper}"]
    if spec.released:
        lines.append(f"    its released code: {spec.released}")
    for option in spec.options:
        kind = f"{option.type_name}, default {option.default}"
        lines.append(f"    {flag_of(option)} ({kind}): {option.help}")
    return "\n".join(lines)


def sites_text() -> str:
    """The flags that choose norms and their place, a line each."""
    return "\n".join(["sites", *(f"    {flag}: {text}" for flag, text in site_flags())])


def norms_table() -> str:
    """Markdown: a row a norm."""
    rows = [
        (
            *("`--norm-type`", "formula", "paper", "sites of `--norm-type`", "gradient"),
            *("parameters", "statistics", "its released code", "paper read"),
        )
    ]
    for name in NORM_TYPES:
        spec = norm_spec(name)
        sites = "encoder; the decoder keeps layernorm" if spec.batch_statistics else "all"
        gradient = "exact" if spec.cls.exact_gradient else "approximate by design"
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
            rows.append((f"`{flag_of(option)}`", kind, _defaults(own), names, meaning))
    return markdown(rows)


def sites_table() -> str:
    """Markdown: the flags that choose norms and their place."""
    rows = [("flag", "meaning")]
    rows += [(f"`{flag}`", text) for flag, text in site_flags()]
    return markdown(rows)


def site_flags() -> list[tuple[str, str]]:
    """The flags that choose norms and their place, with their meanings; it needs fairseq."""
    from norm_plugin.models import flags
    from norm_plugin.models.config import config_class

    cfg = config_class()()
    fields = ["norm_type", *map(flags.norm_type_field, flags.SITE_FLAGS)]
    fields += [*flags.CHOICES, *flags.VALUES]
    return [(flags.flag_of(field), cfg._get_help(field)) for field in fields]


def patches_by_function() -> dict[str, tuple[str, str]]:
    """Why each function of fairseq is wrapped, and the test of that; it needs fairseq."""
    from norm_plugin.models import patches

    entry = r"^(fairseq[\w.]+)\n    why: (.+(?:\n {8}.+)*)\n    test: (.+)$"
    return {
        function: (" ".join(why.split()), test)
        for function, why, test in re.findall(entry, patches.__doc__ or "", re.MULTILINE)
    }


def patches_table() -> str:
    """Markdown: the functions of fairseq that are wrapped."""
    rows = [("function", "reason", "test")]
    rows += [(f"`{name}`", why, f"`{test}`") for name, (why, test) in patches_by_function().items()]
    return markdown(rows)


def _defaults(owners: list[tuple[str, Option]]) -> str:
    values = {option.default for _, option in owners}
    if len(values) == 1:
        return str(values.pop())
    return ", ".join(f"{option.default} ({name})" for name, option in owners)


def markdown(rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; the first row is its head. A ``|`` within a cell is escaped."""
    head, *body = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
