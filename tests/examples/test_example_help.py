"""The examples explain themselves."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

FILES = sorted(EXAMPLES.glob("*.py"))
COMMANDS = [path.stem for path in FILES if "__main__" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", COMMANDS)
def test_it_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(name).main(["--help"])
    assert not stopped.value.code
    assert f"python examples/{name}.py" in capsys.readouterr().out
