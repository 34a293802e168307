"""The blocks of plain commands."""

from __future__ import annotations

import shlex

from norm_plugin.experiments.recipes import read_recipe, training_flags
from recipe_commands import WIDTH, command_lines


def test_a_command_is_the_recipe_word_by_word():
    text = command_lines("iwslt14_de_en", ["norm=powernorm"])
    assert all(len(line) <= WIDTH + 6 for line in text.splitlines())
    train, average, generate = shlex_lines(text)
    recipe = read_recipe("iwslt14_de_en", ["norm=powernorm"])
    assert train == ["fairseq-train", "DATA", *training_flags(recipe)]
    assert average[-4:] == ["--last-epochs", "10", "--output", "averaged.pt"]
    assert generate[-4:] == ["--beam", "5", "--lenpen", "1.0"]


def test_the_commands_of_a_classifier_average_nothing():
    train, predict = shlex_lines(command_lines("sst5"))
    assert train == ["fairseq-train", "DATA", *training_flags(read_recipe("sst5"))]
    module = ["norm-plugin", "predict", "DATA"]
    assert predict[:3] == module and predict[-1] == "checkpoints/checkpoint_best.pt"


def shlex_lines(text):
    """The words of each command of a code block, as a shell reads them."""
    code = text.removeprefix("```bash\n").removesuffix("\n```").replace("\\\n", "")
    return [shlex.split(line) for line in code.splitlines()]
