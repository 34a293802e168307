"""tools/docs.py: it fills the blocks of a folder's documentation, or tells which are stale."""

from __future__ import annotations

import pytest

from docs import fill, main
from norm_plugin.commands.command_line import CommandError

GENERATORS = {"results/": lambda name: f"\nnew {name}\n\nline\n", "norms": lambda name: "N"}


def test_fill_changes_only_blocks():
    text = "a\n<!-- begin:results/x -->\nold\n\nold\n<!-- end:results/x -->\nb\n"
    filled = fill(text, GENERATORS)
    block = "<!-- begin:results/x -->\nnew x\n\nline\n<!-- end:results/x -->"
    assert filled == f"a\n{block}\nb\n"
    assert fill(filled, GENERATORS) == filled
    assert fill("no block\n", GENERATORS) == "no block\n"
    empty = "<!-- begin:norms -->\n<!-- end:norms -->\n<!-- begin:norms -->\n<!-- end:norms -->"
    assert fill(empty, GENERATORS).count("\nN\n") == 2


@pytest.mark.parametrize(
    "text",
    [
        "<!-- begin:results/x -->\n",
        "<!-- begin:results/x -->\n<!-- end:results/y -->",
        "<!-- begin:norms -->\n<!-- begin:results/x -->\n<!-- end:norms -->",
    ],
)
def test_a_marker_without_its_other_half_is_refused(text):
    with pytest.raises(CommandError, match="not each begin has its end"):
        fill(text, GENERATORS)


def test_docs_are_filled_and_checked(tmp_path):
    old = "# Title\n<!-- begin:norms -->\nold\n<!-- end:norms -->\n"
    (tmp_path / "docs").mkdir()
    pages = [tmp_path / "README.md", tmp_path / "docs" / "norms.md"]
    for page in pages:
        page.write_text(old, encoding="utf-8")
    with pytest.raises(CommandError, match=r"stale: README\.md, norms\.md; run python tools/docs"):
        main(["--root", str(tmp_path), "--check"])
    assert {page.read_text(encoding="utf-8") for page in pages} == {old}
    assert main(["--root", str(tmp_path)]) == 0
    for page in pages:
        filled = page.read_text(encoding="utf-8")
        assert "\nold\n" not in filled and "| `powernorm` |" in filled
    assert main(["--root", str(tmp_path), "--check"]) == 0
