"""A recipe as the plain commands of fairseq, for the documentation."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from norm_plugin.experiments.recipes import (
    averaging_flags,
    generation_flags,
    read_recipe,
    training_flags,
)

WIDTH = 96
CONTINUED = " \\\n    "


def command_lines(name: str, overrides: Sequence[str] = ()) -> str:
    """Markdown: training, averaging and decoding by a recipe, as they are typed in a shell."""
    recipe = read_recipe(name, overrides)
    average = ["python", "-m", "norm_plugin.checkpoints.average", "--inputs", "checkpoints"]
    generate = ["fairseq-generate", "DATA", "--user-dir", "norm_plugin", "--path", "averaged.pt"]
    commands = (
        ["fairseq-train", "DATA", *training_flags(recipe)],
        [*average, *averaging_flags(recipe), "--output", "averaged.pt"],
        [
            *generate,
            "--remove-bpe",
            "--required-batch-size-multiple",
            "1",
            *generation_flags(recipe),
        ],
    )
    return "\n".join(["```bash", *(_wrapped(command) for command in commands), "```"])


def _wrapped(command: Sequence[str]) -> str:
    """A command on lines of at most ``WIDTH``, broken before flags only."""
    lines = [""]
    for words in _with_their_values(command):
        longer = f"{lines[-1]} {words}".lstrip()
        if lines[-1] and len(longer) > WIDTH:
            lines.append(words)
        else:
            lines[-1] = longer
    return CONTINUED.join(lines)


def _with_their_values(command: Sequence[str]) -> Iterator[str]:
    """Each flag with its value as one text, ready for a shell."""
    group: list[str] = []
    for word in command:
        if word.startswith("--") and group:
            yield shlex.join(group)
            group = []
        group.append(word)
    yield shlex.join(group)
