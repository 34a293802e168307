"""A recipe as the plain commands of fairseq, for the documentation."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from norm_lab.config.configuration import read_configuration
from norm_lab.config.experiments import experiment_metrics
from norm_lab.metrics import AVERAGE, find_metric
from norm_lab.run.flags import averaging_flags, training_flags

WIDTH = 96
CONTINUED = " \\\n    "


def command_lines(name: str, overrides: Sequence[str] = ()) -> str:
    """Return Markdown: a recipe's training, averaging and evaluation, as typed in a shell."""
    config, metric = read_configuration(name, overrides), find_metric(experiment_metrics()[name])
    averaged = metric.checkpoint == AVERAGE
    checkpoint = "averaged.pt" if averaged else "checkpoints/checkpoint_best.pt"
    average = ["norm-plugin", "average", "--inputs", "checkpoints"]
    evaluate = [*_command(metric.module), "DATA", "--user-dir", "norm_plugin"]
    commands = [
        ["fairseq-train", "DATA", *training_flags(config)],
        *([[*average, *averaging_flags(config), "--output", checkpoint]] if averaged else []),
        [*evaluate, "--path", checkpoint, *metric.flags("", config)],
    ]
    return "\n".join(["```bash", *(_wrapped(command) for command in commands), "```"])


def _command(module: str) -> list[str]:
    """Return how a user starts a module: fairseq's modules have commands of their own."""
    package, _, name = module.rpartition(".")
    if package == "fairseq_cli":
        return [f"fairseq-{name.replace('_', '-')}"]
    return module.replace("norm_plugin", "norm-plugin").split()


def _wrapped(command: Sequence[str]) -> str:
    """Return a command on lines of at most ``WIDTH``, broken before flags only."""
    lines = [""]
    for group in _with_their_values(command):
        longer = f"{lines[-1]} {group}".lstrip()
        if lines[-1] and len(longer) > WIDTH:
            lines.append(group)
        else:
            lines[-1] = longer
    return CONTINUED.join(lines)


def _with_their_values(command: Sequence[str]) -> Iterator[str]:
    """Yield each flag with its value as one text, ready for a shell."""
    group: list[str] = []
    for word in command:
        if word.startswith("--") and group:
            yield shlex.join(group)
            group = []
        group.append(word)
    yield shlex.join(group)
