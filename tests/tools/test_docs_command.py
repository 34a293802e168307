"""tools/docs.py: it fills the blocks of a folder's documentation, or tells which are stale."""

from __future__ import annotations

import pytest

from docs import main
from norm_plugin.commands.command_line import CommandError

OLD = "# Title\n<!-- begin:norms -->\nold\n<!-- end:norms -->\n"


def test_docs_are_filled_and_checked(tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    pages = [tmp_path / "README.md", tmp_path / "docs" / "norms.md"]
    for page in pages:
        page.write_text(OLD, encoding="utf-8")
    with pytest.raises(CommandError, match=r"stale: README\.md, norms\.md; run python tools/docs"):
        main(["--root", str(tmp_path), "--check"])
    assert {page.read_text(encoding="utf-8") for page in pages} == {OLD}
    assert main(["--root", str(tmp_path)]) == 0
    for page in pages:
        filled = page.read_text(encoding="utf-8")
        assert "\nold\n" not in filled and "| `powernorm` |" in filled
    assert main(["--root", str(tmp_path), "--check"]) == 0
