"""Habits of the examples: short enough to read, and they explain themselves."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

MOST_LINES = 150
FILES = sorted(EXAMPLES.glob("*.py"))
COMMANDS = [path.stem for path in FILES if "__main__" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", COMMANDS)
def test_it_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(name).main(["--help"])
    assert not stopped.value.code
    assert f"python examples/{name}.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", ["--data", ".", "--epochs", "0"]),
        ("parsing", ["--data", ".", "--epochs", "0"]),
        ("huggingface", ["--updates", "0"]),
    ],
)
def test_a_training_of_no_length_is_refused(name, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(name).main(words)
    assert stopped.value.code == 2
    message = f"argument {words[-2]}: '0' is not a whole number from 1"
    assert message in capsys.readouterr().err
