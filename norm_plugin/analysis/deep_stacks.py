"""Which placements train deep stacks: narrow models of several depths on the toy corpus.

    python data-prep/toy.py --out work/data/toy
    norm-plugin deep-stacks --data work/data/toy/bin --out results/deep_stacks

Every placement trains with the settings of ``configs/toy.yaml``, except for :data:`CHANGED`. All
models train in one process. Each finished run is a line of ``runs.jsonl``, and a stopped command
continues with the missing runs. ``about.json`` has the settings, the versions and the commit of the
first run; each row has its own commit. At the end, ``deep_stacks_page.py`` writes tables and
figures.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import logging
import math
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from norm_plugin.analysis.deep_stacks_page import (
    ABOUT,
    ORIGIN,
    RUNS,
    WINDOW,
    read_runs,
    write_page,
)
from norm_plugin.analysis.records import LAYERS, read_record, values_of
from norm_plugin.commands.command_line import (
    CommandError,
    at_least,
    read_json,
    read_text,
    write_text,
)
from norm_plugin.experiments.collect import git_state, machine, versions
from norm_plugin.experiments.recipes import read_recipe, training_flags
from norm_plugin.experiments.state import hold_lock
from norm_plugin.models.plan import RECORDS
from norm_plugin.placements import PLACEMENTS

CHANGED = {
    "encoder-embed-dim": 32,
    "decoder-embed-dim": 32,
    "encoder-ffn-embed-dim": 64,
    "decoder-ffn-embed-dim": 64,
    "encoder-attention-heads": 2,
    "decoder-attention-heads": 2,
    "dropout": 0,
    "lr": 0.002,
    "warmup-updates": 50,
    "clip-norm": 0,
    "max-tokens": 512,
    "norm-nan-check": "off",
}
"""Flags that differ from ``configs/toy.yaml``. Without clipping, divergence becomes visible:
fairseq checks in each update that the gradient is finite."""
DEPTHS = (24, 12, 4)
UPDATES = 300
DIGITS = 4
COMMAND = ("norm-plugin", "deep-stacks")


class Case(NamedTuple):
    """One training: N = M = ``layers`` layers in each stack."""

    placement: str
    layers: int
    seed: int


def configuration(case: Case, data: Path, save_dir: Path, updates: int) -> Any:
    """fairseq's configuration of a case; gradients are recorded in the first and last update."""
    flags = training_flags(read_recipe("toy", [f"common.seed={case.seed}"]))
    changed: dict[str, Any] = {
        **CHANGED,
        "encoder-layers": case.layers,
        "decoder-layers": case.layers,
        "norm-placement": case.placement,
        "norm-record": max(updates - 1, 1),
        "save-dir": save_dir,
    }
    flags += [str(part) for name, value in changed.items() for part in (f"--{name}", value)]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(data), *flags])
    return convert_namespace_to_omegaconf(args)


def train(case: Case, data: Path, updates: int) -> dict[str, Any]:
    """Train one model.

    Returns:
        a row of ``runs.jsonl`` without command and commit: ``losses``, means over :data:`WINDOW`
        updates in bits a token; ``valid``, the final validation loss, None if the run diverged;
        ``diverged``, the update with a loss or gradient that was not finite, None if there was
        none; and ``gradients``, by update and layer the norm of the gradient of the second FFN
        matrix.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cfg = configuration(case, data, folder, updates)
        torch.manual_seed(case.seed)
        task = tasks.setup_task(cfg.task)
        trainer = Trainer(
            cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion)
        )
        losses, diverged = run_updates(trainer, updates)
        windows = [losses[start : start + WINDOW] for start in range(0, len(losses), WINDOW)]
        valid = None if diverged else validation_loss(trainer)
        return {
            **case._asdict(),
            "updates": updates,
            "losses": [rounded(sum(part) / len(part)) for part in windows],
            "valid": None if valid is None or not math.isfinite(valid) else rounded(valid),
            "diverged": diverged,
            "gradients": recorded_gradients(folder / RECORDS),
            "unigram": rounded(unigram_loss(task)),
        }


def run_updates(trainer: Trainer, updates: int) -> tuple[list[float], int | None]:
    """The training loss of each update in bits a token, and the update that diverged, if any."""
    losses: list[float] = []
    metrics.reset()
    for samples in batches(trainer, updates):
        try:
            with metrics.aggregate(new_root=True):
                log = trainer.train_step(samples)
        except (FloatingPointError, StopIteration):  # fairseq's NaN detector may raise the latter
            return losses, trainer.get_num_updates() + 1
        losses.append(float(log["nll_loss"]))
        if not math.isfinite(losses[-1]):
            return losses[:-1], trainer.get_num_updates()
    return losses, None


def batches(trainer: Trainer, updates: int) -> Iterator[list[Any]]:
    """The batches of ``updates`` updates, over as many epochs as needed."""
    epochs = trainer.get_train_iterator(epoch=1)
    trainer.begin_epoch(1)
    endless = itertools.chain.from_iterable(
        epochs.next_epoch_itr(shuffle=True) for _ in itertools.count()
    )
    return ([sample] for sample in itertools.islice(endless, updates))


def validation_loss(trainer: Trainer) -> float:
    """The loss on the whole validation set, in bits a token."""
    trainer.task.load_dataset("valid")
    total, tokens = 0.0, 0
    for sample in trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False):
        with metrics.aggregate(new_root=True):
            log = trainer.valid_step(sample)
        total += float(log["nll_loss"]) * sample["ntokens"]
        tokens += sample["ntokens"]
    return total / tokens


def unigram_loss(task: Any) -> float:
    """The validation loss of a unigram model of the target words, in bits a token.

    Its counts are those of the training set plus one.
    """
    task.load_dataset("valid")
    vocabulary = len(task.target_dictionary)
    counts = torch.ones(vocabulary, dtype=torch.float64)
    seen = torch.zeros_like(counts)
    for split, total in (("train", counts), ("valid", seen)):
        sentences = task.dataset(split).tgt
        for index in range(len(sentences)):
            total += torch.bincount(sentences[index], minlength=vocabulary)
    return float(-(seen @ (counts / counts.sum()).log2()) / seen.sum())


def recorded_gradients(record: Path) -> dict[str, dict[str, float]]:
    """The recorded norms of gradients, by update and layer."""
    name = "fc2.weight_gradient_norm"
    try:
        values = values_of(read_record(record), [name], LAYERS)
    except CommandError:  # it diverged in the first update
        return {}
    return {
        str(update): {
            path: rounded(norm) for path, norm in zip(of_update["place"], of_update[name])
        }
        for update, of_update in values.groupby("update")
    }


def rounded(value: float) -> float:
    """A value with the digits that are stored."""
    return float(f"{value:.{DIGITS}g}")


def about(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """What all runs share, and the commit of the first ones."""
    manifest = read_json(args.data.parent / "manifest.json")
    given = {name: list(getattr(args, name)) for name in ("depths", "seeds")}
    return {
        "settings": {"recipe": "toy", "changed": CHANGED, "updates": args.updates, **given},
        "data": {"corpus": manifest.get("corpus"), "checksum": manifest.get("checksum")},
        "command": command,
        "git": git_state(Path(__file__).parent),
        "versions": versions(),
        "machine": machine(cpu=True),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def train_missing(args: argparse.Namespace, command: str) -> None:
    """Train every case that has no row yet, seed by seed.

    Raises:
        CommandError: the folder has runs with other settings.
    """
    for package in ("fairseq", "norm_plugin"):
        logging.getLogger(package).setLevel(logging.ERROR)
    here, path = about(args, command), args.out / RUNS
    if not (args.out / ABOUT).exists():
        write_text(path, "")
        write_text(args.out / ABOUT, json.dumps(here, indent=2, sort_keys=True) + "\n")
    before = read_json(args.out / ABOUT)
    for key in ("settings", "data"):
        if before[key] != here[key]:
            raise CommandError(
                f"{args.out} has runs with other {key} ({before[key]}): remove it, or choose "
                "another --out"
            )
    trained = {
        Case(row.placement, row.layers, row.seed) for row in read_runs(args.out).itertuples()
    }
    for seed, layers, placement in itertools.product(args.seeds, args.depths, args.placements):
        case = Case(placement, layers, seed)
        if case not in trained:
            row = train(case, args.data, args.updates)
            line = json.dumps(
                {**row, **{name: here[name] for name in ORIGIN}}, separators=(",", ":")
            )
            write_text(path, f"{read_text(path)}{line}\n")
            state = f"diverged in update {row['diverged']}" if row["diverged"] else row["valid"]
            print(*case, state, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=" ".join(COMMAND),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, metavar="BIN", help="the binarized toy corpus")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--placements", nargs="+", choices=PLACEMENTS, default=list(PLACEMENTS))
    parser.add_argument("--depths", nargs="+", type=at_least(1), default=DEPTHS, metavar="L")
    parser.add_argument("--seeds", nargs="+", type=int, default=(1,), metavar="N")
    parser.add_argument("--updates", type=at_least(1), default=UPDATES, metavar="N")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    args = parser.parse_args(argv)
    for name in ("placements", "depths", "seeds"):  # ignore duplicates
        setattr(args, name, list(dict.fromkeys(getattr(args, name))))
    if not args.page:
        if args.data is None:
            parser.error("--data is missing: the bin/ folder that data-prep/toy.py has made")
        args.out.mkdir(parents=True, exist_ok=True)
        with hold_lock(args.out, "a training of deep stacks"):
            train_missing(args, shlex.join([*COMMAND, *(sys.argv[1:] if argv is None else argv)]))
    write_page(args.out)
    return 0
