"""tools/docs.py fills the blocks of the documentation; the blocks of plain commands."""

from __future__ import annotations

import shlex

import pytest

from docs import main
from norm_lab.config.configuration import read_configuration
from norm_lab.run.flags import training_flags
from norm_plugin.io.command_line import CommandError
from recipe_commands import WIDTH, command_lines


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


def test_a_command_is_the_recipe_word_by_word():
    text = command_lines("iwslt14_de_en", ["norm=powernorm"])
    assert all(len(line) <= WIDTH + 6 for line in text.splitlines())
    train, average, generate = shlex_lines(text)
    config = read_configuration("iwslt14_de_en", ["norm=powernorm"])
    assert train == ["fairseq-train", "DATA", *training_flags(config)]
    assert average[-4:] == ["--last-epochs", "10", "--output", "averaged.pt"]
    assert generate[-4:] == ["--beam", "5", "--lenpen", "1.0"]


def shlex_lines(text):
    """The words of each command of a code block, as a shell reads them."""
    code = text.removeprefix("```bash\n").removesuffix("\n```").replace("\\\n", "")
    return [shlex.split(line) for line in code.splitlines()]
