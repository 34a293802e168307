"""Generated blocks of a Markdown text.

A block is what stands between ``<!-- begin:NAME -->`` and ``<!-- end:NAME -->``, each on a line of
its own. ``fill`` writes it anew by the generator that is registered for the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from norm_plugin.commands.command_line import CommandError

Generators = dict[str, Callable[[str], str]]

MARKER = re.compile(r"<!-- (begin|end):(\S+) -->")


def fill(text: str, generators: Generators) -> str:
    """``text`` with every block written anew; what is outside the blocks stays as it is.

    A generator gets the block's name and returns its Markdown. Its key is the name itself, or,
    ending in "/", a prefix of names. Raises CommandError for an unknown name, a block that is
    not closed, and an end without a beginning.
    """
    lines: list[str] = []
    block = None
    for line in text.split("\n"):
        marker = MARKER.fullmatch(line.strip())
        if marker is None:
            if block is None:
                lines.append(line)
            continue
        kind, name = marker.groups()
        if kind == "begin" and block is None:
            lines += [line, *_generator(name, generators)(name).strip("\n").split("\n")]
            block = name
        elif kind == "end" and block == name:
            lines.append(line)
            block = None
        else:
            inside = f"inside block '{block}'" if block else "outside any block"
            raise CommandError(f"marker '{line.strip()}' is {inside}; give each begin its end")
    if block is not None:
        raise CommandError(f"block '{block}' has no '<!-- end:{block} -->'")
    return "\n".join(lines)


def _generator(name: str, generators: Generators) -> Callable[[str], str]:
    for key, generator in generators.items():
        if key == name or (key.endswith("/") and name.startswith(key)):
            return generator
    raise CommandError(f"no generator for block '{name}'; there are {', '.join(generators)}")
