"""Generated blocks of Markdown pages."""

from __future__ import annotations

import pytest

from norm_lab.report.blocks import fill
from norm_plugin.io.command_line import CommandError

GENERATORS = {"studies/": lambda name: f"\nnew {name}\n\nline\n", "norms": lambda name: "N"}


def test_fill_changes_only_blocks():
    text = "a\n<!-- begin:studies/x -->\nold\n\nold\n<!-- end:studies/x -->\nb\n"
    filled = fill(text, GENERATORS)
    block = "<!-- begin:studies/x -->\nnew x\n\nline\n<!-- end:studies/x -->"
    assert filled == f"a\n{block}\nb\n"
    assert fill(filled, GENERATORS) == filled
    assert fill("no block\n", GENERATORS) == "no block\n"
    empty = "<!-- begin:norms -->\n<!-- end:norms -->\n<!-- begin:norms -->\n<!-- end:norms -->"
    assert fill(empty, GENERATORS).count("\nN\n") == 2


@pytest.mark.parametrize(
    "text",
    [
        "<!-- begin:studies/x -->\n",
        "<!-- begin:studies/x -->\n<!-- end:studies/y -->",
        "<!-- begin:norms -->\n<!-- begin:studies/x -->\n<!-- end:norms -->",
    ],
)
def test_a_marker_without_its_other_half_is_refused(text):
    with pytest.raises(CommandError, match="begin and end markers do not alternate"):
        fill(text, GENERATORS)


def test_an_unknown_block_is_an_error():
    text = "<!-- begin:results/x -->\nold\n<!-- end:results/x -->\n"
    with pytest.raises(KeyError, match="results/"):
        fill(text, {})
