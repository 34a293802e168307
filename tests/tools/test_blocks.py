"""tools/blocks.py: what stands in a block of a Markdown text is written anew, and nothing else."""

from __future__ import annotations

import pytest

from blocks import fill
from norm_plugin.commands.command_line import CommandError


def test_fill_changes_only_blocks() -> None:
    text = "a\n<!-- begin:results/x -->\nold\n\nold\n<!-- end:results/x -->\nb\n"
    generators = {"norms": lambda name: "N", "results/": lambda name: f"\nnew {name}\n\nline\n"}
    filled = fill(text, generators)
    block = "<!-- begin:results/x -->\nnew results/x\n\nline\n<!-- end:results/x -->"
    assert filled == f"a\n{block}\nb\n"
    assert fill(filled, generators) == filled
    assert fill("no block\n", generators) == "no block\n"
    two = "<!-- begin:norms -->\n<!-- end:norms -->\n<!-- begin:norms -->\n<!-- end:norms -->"
    assert fill(two, generators).count("\nN\n") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- begin:other -->\n<!-- end:other -->", "no generator for block 'other'"),
        ("<!-- begin:results -->\n<!-- end:results -->", "no generator for block 'results'"),
        ("<!-- begin:norms/x -->\n<!-- end:norms/x -->", "no generator for block 'norms/x'"),
        ("<!-- begin:results/x -->\n", "block 'results/x' has no"),
        ("<!-- end:results/x -->\n", "outside any block"),
        ("<!-- begin:results/x -->\n<!-- end:results/y -->", "inside block 'results/x'"),
        ("<!-- begin:results/x -->\n<!-- begin:results/x -->", "inside block 'results/x'"),
    ],
)
def test_bad_markers(text, message) -> None:
    with pytest.raises(CommandError, match=message):
        fill(text, {"results/": lambda name: "new", "norms": lambda name: "new"})
