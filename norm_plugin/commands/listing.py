"""What norms and models offer, as text for a terminal: ``norm-plugin list``."""

from __future__ import annotations

from collections.abc import Iterable

from norm_plugin.norms import norm_spec


def norm_text(name: str) -> str:
    """Name, formula and paper of a norm, and a line for each of its options."""
    spec = norm_spec(name)
    lines = [name, f"    {spec.formula}", f"    {spec.paper}"]
    if spec.released:
        lines.append(f"    its released code: {spec.released}")
    for option in spec.options:
        kind = f"{option.type_name}, default {option.default}"
        lines.append(f"    {option.flag} ({kind}): {option.help}")
    return "\n".join(lines)


def sites_text(flags: Iterable[tuple[str, str]]) -> str:
    """The flags that choose norms and their place, each with its meaning, a line each."""
    return "\n".join(["sites", *(f"    {flag}: {text}" for flag, text in flags)])
