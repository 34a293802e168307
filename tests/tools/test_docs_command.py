"""tools/docs.py fills the blocks of the documentation."""

from __future__ import annotations

import pytest

from docs import main
from norm_plugin.io.command_line import CommandError


def test_docs_are_filled_and_checked(tmp_path):
    old = "# Title\n<!-- begin:norms -->\nold\n<!-- end:norms -->\n"
    (tmp_path / "docs").mkdir()
    pages = [tmp_path / "docs" / "models.md", tmp_path / "docs" / "norms.md"]
    for page in pages:
        page.write_text(old, encoding="utf-8")
    with pytest.raises(CommandError, match=r"stale: models\.md, norms\.md; run python tools/docs"):
        main(["--root", str(tmp_path), "--check"])
    assert {page.read_text(encoding="utf-8") for page in pages} == {old}
    assert main(["--root", str(tmp_path)]) == 0
    for page in pages:
        filled = page.read_text(encoding="utf-8")
        assert "\nold\n" not in filled and "| `powernorm` |" in filled
    assert main(["--root", str(tmp_path), "--check"]) == 0
