"""What is asked of one run: the options of a command line, read and checked."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.facts import Facts, read_facts
from norm_plugin.experiments.pretrained import Pretrained, find_pretrained

ROOT = Path(__file__).resolve().parents[2]
SUBWORDS = ("subword-nmt", "sentencepiece")
CHOICES = ("norm", "seed", "preset", "recipe", "subword")
"""Overrides that choose the run; the others change its hyper-parameters."""
SHORT = {"placement": "model.norm_placement"}
OF_THE_WHOLE_RUN = {
    "common.seed": "seed=N",
    "model.norm_type": "norm=X",
    "common.user_dir": "--user-dir DIR",
    "checkpoint.save_dir": "--work DIR",
}
"""Keys that more than the training has to know, and how to give them to the whole run."""
SEED = re.compile(r"0|[1-9][0-9]{0,9}")
MOST_SEED = 2**31 - 1  # numpy takes 32 bits, and fairseq adds the number of the epoch


@dataclass(frozen=True)
class Settings:
    """One run, as asked for.

    Attributes:
        overrides: of the hyper-parameters, in hydra's syntax.
        further: flags of ``fairseq-train`` that come after those of the recipe.
        gpus: a number, or "auto".
        elsewhere: the run is not started on this machine, or not at all.
        raw: the folder of the raw corpus; None to download it.
        pretrained: the model that is fine-tuned; None for one that is trained from the start.
    """

    facts: Facts
    norm: str
    seed: int
    overrides: tuple[str, ...]
    further: tuple[str, ...]
    subword: str
    smoke: bool
    fold: bool
    gpus: str
    change_batch: bool
    srun: bool
    elsewhere: bool
    tensorboard: bool
    dry: bool
    work: Path
    results: Path
    raw: Path | None
    pretrained: Pretrained | None
    user_dir: Path | None


def read_settings(args: argparse.Namespace) -> Settings:
    """The settings that the options of ``run`` ask for; raises CommandError for a wrong one."""
    chosen, overrides = split_overrides(args.overrides)
    for name in CHOICES:
        option = getattr(args, name, None)
        if option is not None and chosen.setdefault(name, option) != option:
            raise CommandError(f"{name} is both {chosen[name]} and {option}; name it once")
    facts = read_facts(args.experiment, chosen.get("preset"), chosen.get("recipe"))
    subword = chosen.get("subword", SUBWORDS[0])
    if subword not in SUBWORDS:
        raise CommandError(f"--subword is {subword}; choose {' or '.join(SUBWORDS)}")
    if facts.words and "subword" in chosen:
        raise CommandError(f"{facts.name} has no subword units; leave --subword out")
    work = ROOT / "work" if args.work is None else from_here(args.work)
    if ":" in str(work):
        raise CommandError(f"--work is {work}; fairseq splits paths at a colon, so choose another")
    return Settings(
        facts=facts,
        norm=chosen.get("norm", "layernorm"),
        seed=read_seed(chosen.get("seed", "1")),
        overrides=tuple(overrides),
        further=tuple(args.further),
        subword=subword,
        smoke=args.smoke,
        fold=args.fold_norms,
        gpus=getattr(args, "gpus", "auto"),
        change_batch=getattr(args, "change_batch", False),
        srun=getattr(args, "srun", False),
        elsewhere=args.dry_run or getattr(args, "srun", False) or _by_slurm(args),
        tensorboard=args.tensorboard,
        dry=args.dry_run,
        work=work,
        results=work / "results" if args.results is None else from_here(args.results),
        raw=_raw_folder(args.raw, facts.corpus_name),
        pretrained=_pretrained(args.pretrained, facts),
        user_dir=_user_dir(args.user_dir),
    )


def _by_slurm(args: argparse.Namespace) -> bool:
    """Whether Slurm starts the runs of a sweep, or the sweep only prints its state."""
    return getattr(args, "launcher", "joblib") != "joblib" or getattr(args, "status", False)


def split_overrides(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The choices by name, and the other overrides with the full names of their keys.

    Raises CommandError for a word that hydra cannot read, or a sweep.
    """
    chosen: dict[str, str] = {}
    left = []
    for override in parse_overrides(words):
        if override.is_sweep_override():
            raise CommandError(
                f"{override.input_line} names several values; that is for the command sweep"
            )
        key = override.key_or_group
        if key in CHOICES and not override.is_delete() and not override.is_add():
            chosen[key] = str(override.get_value_element_as_str()).strip("'\"")
        else:
            left.append(_full_name(override))
    return chosen, left


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """What hydra's grammar reads in ``words``; raises CommandError for what it refuses."""
    try:
        return OverridesParser.create().parse_overrides(list(words))
    except HydraException as error:
        raise CommandError(str(error).splitlines()[0]) from error


def _full_name(override: Override) -> str:
    """The override with a dotted key: ``norm_variant=...`` is ``model.norm_variant=...``."""
    line = str(override.input_line)
    key = override.key_or_group
    full = f"model.{key}" if key.startswith("norm_") else SHORT.get(key, key)
    if full in OF_THE_WHOLE_RUN:
        raise CommandError(f"{line}: give {OF_THE_WHOLE_RUN[full]} instead")
    if "." in full:
        return line.replace(key, full, 1)
    raise CommandError(
        f"unknown key {key}; choose from {', '.join([*CHOICES, *SHORT])}, an option of the norm "
        "(norm_eps=...), or a dotted key of the experiment's YAML file (model.dropout=...)"
    )


def read_seed(text: str) -> int:
    """A seed as a number; raises CommandError for another word."""
    if not SEED.fullmatch(text) or int(text) > MOST_SEED:
        raise CommandError(f"--seed is {text}; it must be a whole number from 0 to {MOST_SEED}")
    return int(text)


def from_here(path: str) -> Path:
    """An absolute path; relative ones count from the user's folder. Links stay as they are."""
    return Path(os.getcwd(), path)


def _raw_folder(given: str | None, corpus: str) -> Path | None:
    corpora: Any = os.environ.get("NORM_DATA_DIR")
    if given is not None:
        return from_here(given)
    folder = corpus.replace("_", "-")  # a module's name has no hyphen
    if corpora and from_here(corpora).joinpath(folder).is_dir():
        return from_here(corpora) / folder
    return None


def _pretrained(given: str | None, facts: Facts) -> Pretrained | None:
    if given is None:
        return None
    if facts.metric != "accuracy":
        raise CommandError(
            f"--pretrained is for classification, and {facts.name} is none; leave it out"
        )
    return find_pretrained(from_here(given))


def _user_dir(given: str | None) -> Path | None:
    if given is None:
        return None
    folder = from_here(given)
    if not folder.is_dir():
        raise CommandError(f"--user-dir is {given}, which is no folder")
    return folder
