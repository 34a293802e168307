"""The settings of the papers and those of our recipes, from ``settings.yaml``.

The key of a row names our value: a flag of ``fairseq-train`` with underscores, as the parser and
the model complete it (none: the recipe has no such flag), or

    merges                merges, or types, of the subword units
    tokens, sentences     tokens or sentences per update
    sites                 the stacks that have the norm at every site
    layers                of encoder and decoder
    splits                sentences of the parts that the file of the corpus fixes
    bleu                  form of the score that is compared with the papers'
    metric                of the experiment
    average               how many checkpoints are averaged
    checkpoint            the checkpoint that is evaluated
    beam, lenpen          of the search
    corpus, config        the file of data-prep/, that of configs/
    NORM.OPTION           the default of a norm's option
    study.KEY             the values of an override in the study of the task
    BATCH, epochs, C      of an example: a constant of its file, the default of a flag, AdaNorm's C
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.options import get_training_parser, parse_args_and_arch

import norm_plugin.models  # noqa: F401  registers the architectures
from norm_lab.config.configuration import read_configuration
from norm_lab.config.experiments import experiment_metrics, find_experiment
from norm_lab.config.studies import read_study_file, study_path
from norm_lab.metrics import AVERAGE, find_metric
from norm_lab.paths import CONFIGS, ROOT
from norm_lab.report.text import markdown
from norm_lab.run.flags import Configuration, averaging_flags, training_flags
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.settle import settle
from norm_plugin.norms import norm_spec

sys.path += [str(ROOT / "data-prep"), str(ROOT / "examples")]  # for the files that rows name
FILE = Path(__file__).with_name("settings.yaml")
AGREES, SILENT = "as in the paper", "not given"
Declared = Mapping[str, Any]


class Row(NamedTuple):
    """A setting: what the paper says and where, our value, and the reason if it differs."""

    setting: str
    paper: str
    at: str
    ours: str
    why: str


def settings_tables() -> str:
    """Return Markdown: one section with a table per task."""
    return "\n\n".join(_section(task) for task in declared_tasks())


@cache
def declared_tasks() -> list[dict[str, Any]]:
    """Return the tasks as ``settings.yaml`` declares them."""
    tasks: list[dict[str, Any]] = yaml.safe_load(FILE.read_text("utf-8"))
    return tasks


def _section(task: Declared) -> str:
    table = pd.DataFrame(compared(task))
    table.columns = ["setting", "the paper", "where", "here", "why"]
    if "example" in task:
        command = f"python examples/{task['example']}.py --norm-type adanorm"
    else:
        command = " ".join(
            ["norm-plugin fairseq-flags", task["experiment"], *task.get("overrides", ())]
        )
    study = f" and `studies/{task['study']}/study.yaml`" if "study" in task else ""
    return f"## {task['title']}\n\n{task['source']}. Here: `{command}`{study}.\n\n{markdown(table)}"


def compared(task: Declared) -> list[Row]:
    """Return the rows of a task.

    Raises:
        CommandError: a row differs from the paper without a reason, or agrees and has one.
    """
    keys = {row["key"] for row in rows_of(task)}
    values = example_values(task["example"], keys) if "example" in task else recipe_values(task)
    return [_row(f"{task['title']}, {row['setting']}", row, values) for row in rows_of(task)]


def rows_of(task: Declared) -> list[dict[str, Any]]:
    """Return the rows of a task, its ``own`` before those that it may share with another."""
    return [{"key": "", **row} for row in (*task.get("own", ()), *task["rows"])]


def _row(name: str, row: Declared, values: Mapping[str, Any]) -> Row:
    ours, paper = row.get("here", values.get(row["key"])), row.get("paper")
    expected = row.get("as", paper)
    expected = values.get(expected, expected)  # the name of another value, or a value
    agrees = paper is not None and _text(ours) == _text(expected)
    why = row.get("why", "")
    if not agrees and not why:
        said = "nothing" if paper is None else _text(paper)
        raise CommandError(
            f"{name}: the paper says {said}, the recipe has {_text(ours)}; correct it or say why"
        )
    if agrees and why:
        raise CommandError(f"{name}: the recipe agrees with the paper; remove the reason {why!r}")
    said = SILENT if paper is None else _text(paper)
    return Row(row["setting"], said, row.get("at", "-"), _text(ours), why or AGREES)


def _text(value: Any) -> str:
    """Return the text of a value for display and comparison: 4096 for [4096], 0.1 for 0.10."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- our values -----------------------------------------------------------------------------


def example_values(name: str, keys: Iterable[str]) -> dict[str, Any]:
    """Return the values of an example: ``epochs`` from its flag, C that of AdaNorm in it."""
    module = importlib.import_module(name)
    constants = {key: getattr(module, key) for key in keys if key.isupper() and len(key) > 1}
    epochs = re.search(r'"--epochs",.*?default=(\d+)', inspect.getsource(module))
    scale = (
        getattr(module, "PAPER", {}).get("adanorm", {}).get("scale", default_of("adanorm.scale"))
    )
    return {**constants, "epochs": epochs and int(epochs[1]), "C": scale}


def recipe_values(task: Declared) -> dict[str, Any]:
    """Return the values of a recipe by the keys of the rows of ``task``."""
    name, overrides = task["experiment"], task.get("overrides", ())
    config = read_configuration(name, overrides)
    args = parse_args_and_arch(get_training_parser(), ["DATA", *training_flags(config)])
    values = dict(vars(args))
    (batches,) = args.update_freq
    values |= {"tokens": (args.max_tokens or 0) * batches, "config": name}
    values |= {"sentences": (args.batch_size or 0) * batches, "sites": _sites(args)}
    values |= config.get("generation", {})
    values["layers"] = [getattr(args, f"{side}_layers", None) for side in ("encoder", "decoder")]
    for option in norm_spec(args.norm_type).options:
        if values.get(f"norm_{option.name}") is None:
            values[f"norm_{option.name}"] = option.default
    if name in experiment_metrics():
        values |= _of_experiment(task, config)
    dotted = {row["key"] for row in rows_of(task) if "." in row["key"]}
    for key in dotted:
        study = key.removeprefix("study.")
        values[key] = default_of(key) if study == key else _of_study(task["study"], study)
    return values


def _sites(args: Any) -> str:
    """Return the stacks in which every site has the norm of ``--norm-type``."""
    sides = ARCH_MODEL_REGISTRY[args.arch].sides
    sites = settle(args, sides).sites
    of_norm = {
        side: {each.norm == args.norm_type for each in sites if each.site.side == side}
        for side in sides
    }
    return " and ".join(side for side in sides if of_norm[side] == {True})


def _of_experiment(task: Declared, config: Configuration) -> dict[str, Any]:
    """Return the values that ``norm-plugin run`` reads from an experiment."""
    chosen = dict(each.split("=", 1) for each in task.get("overrides", ())).get("recipe")
    experiment = find_experiment(str(CONFIGS / f"{task['experiment']}.yaml"), recipe=chosen)
    metric = find_metric(experiment.metric)
    values: dict[str, Any] = {"corpus": experiment.corpus, "checkpoint": metric.checkpoint}
    values["metric"] = experiment.metric
    corpus = importlib.import_module(experiment.corpus).CORPUS
    parts = getattr(corpus, "raw", None)
    sizes = getattr(parts, "sizes", None) or getattr(parts or corpus, "lines", None)
    values["splits"] = list(sizes.values()) if isinstance(sizes, dict) else None
    if metric.checkpoint == AVERAGE:
        case = "lower-cased" if corpus.rules.lowercase else "cased"
        split = "compound_split" in corpus.scoring
        values["bleu"] = f"tokenized, {case}" + ", compounds split" * split
        values["merges"] = experiment.merges or corpus.merges or list(corpus.types.values())
        values["average"] = averaging_flags(config)[1]
    return values


def _of_study(study: str, key: str) -> str:
    """Return the values of an override in a study: ``16,32``."""
    file = read_study_file(study_path(study))
    overrides = [*file.overrides, *(override for arm in file.arms for override in arm)]
    given = dict(each.split("=", 1) for each in overrides)
    return given[key].replace("[", "").replace("]", "")


def default_of(key: str) -> Any:
    """Return the default of an option: ``batchnorm.sync``."""
    norm, _, name = key.partition(".")
    (default,) = [option.default for option in norm_spec(norm).options if option.name == name]
    return default
