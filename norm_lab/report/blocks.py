"""Generated blocks of pages: the text between <!-- begin:NAME --> and <!-- end:NAME -->."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_text, write_text

MARKER = re.compile(r"^<!-- (?:begin|end):.*", re.MULTILINE)
BLOCK = re.compile(r"^(<!-- begin:(.+?) -->\n)(.*?)(^<!-- end:\2 -->)$", re.MULTILINE | re.DOTALL)
Generators = dict[str, Callable[[str], str]]
"""The function that writes a block: by its name, or for ``kind/...`` by ``kind/``."""


def fill(text: str, generators: Generators) -> str:
    """Return ``text`` with every block rewritten; text outside blocks does not change.

    Raises:
        CommandError: a marker has no counterpart.
        KeyError: the name of a block is unknown.
    """

    def written(block: re.Match[str]) -> str:
        begin, name, _, end = block.groups()
        kind, slash, rest = name.partition("/")
        return begin + generators[kind + slash](rest).strip("\n") + "\n" + end

    markers, blocks = MARKER.findall(text), BLOCK.findall(text)
    if len(markers) != 2 * len(blocks):
        raise CommandError(f"begin and end markers do not alternate: {markers}")
    return BLOCK.sub(written, text)


def fill_pages(pages: Iterable[Path], generators: Generators, check: bool) -> list[Path]:
    """Write the blocks of pages, or only ``check`` them; see :func:`fill`.

    Returns:
        The stale files.
    """
    stale = []
    for path in pages:
        old = read_text(path)
        new = fill(old, generators)
        if new != old:
            stale.append(path)
            if not check:
                write_text(path, new)
    return stale


def fill_command(
    argv: Sequence[str] | None,
    parser: argparse.ArgumentParser,
    root: Path,
    fill_root: Callable[[Path, bool], list[Path]],
) -> int:
    """Run a command that fills the blocks of a checkout, or checks them with ``--check``.

    Args:
        parser: without options; ``prog`` is the command.
        root: the default of ``--root``.
        fill_root: fills the pages in a folder, or only checks them, and returns the stale ones.

    Raises:
        CommandError: with ``--check``, a block is stale.
    """
    text = "the folder of the checkout (default: this one)"
    parser.add_argument("--root", type=Path, default=root, metavar="DIR", help=text)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    args = parser.parse_args(argv)
    stale = fill_root(args.root.resolve(), args.check)
    if stale and args.check:
        names = ", ".join(path.name for path in stale)
        raise CommandError(f"stale: {names}; run {parser.prog}")
    return 0
