"""Check the output of a stage of a run before the stage counts as done.

A training that finds no GPU may end without an error and without a checkpoint; a translation may
end early. Nothing is printed if the output is complete; otherwise one line, and the status is 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.checkpoints.average import select_checkpoints
from norm_plugin.checkpoints.files import LAST, load_checkpoint
from norm_plugin.commands.command_line import CommandError, read_json, read_lines
from norm_plugin.experiments.generate_log import read_generate_log


def check_training(folder: Path, kind: str, count: int) -> None:
    """Raise CommandError unless all checkpoints to average are in ``folder`` and can be read.

    Args:
        folder: the ``--save-dir`` of the run.
        kind: "epoch" or "update".
        count: how many checkpoints of that kind are averaged.
    """
    load_checkpoint(folder / LAST)
    for path in select_checkpoints(folder, kind, count, None):
        load_checkpoint(path)


def check_best(checkpoint: Path) -> None:
    """Raise CommandError unless a training's best checkpoint and its last one can be read."""
    for path in (checkpoint.with_name(LAST), checkpoint):
        load_checkpoint(path)


def check_translation(log: Path, data: Path, split: str = "test") -> None:
    """Raise CommandError unless ``log`` holds a translation of every sentence of the corpus."""
    manifest = read_json(data / "manifest.json")
    subword = (manifest.get("settings") or {}).get("subword", "subword-nmt")
    translated = len(read_generate_log(log, subword).hypotheses)
    text = data / "tok" / f"{split}.{manifest.get('target')}"
    sentences = len(read_lines(text))
    if translated != sentences:
        raise CommandError(f"{log} holds {translated} sentences, and {text} has {sentences}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin check-stage",
        description="Check that the output of a stage of a run is complete.",
    )
    stages = parser.add_subparsers(dest="stage", required=True)
    train = stages.add_parser("training", help="the checkpoints to evaluate, and the last one")
    train.add_argument("folder", type=Path, metavar="DIR", help="the --save-dir of the run")
    which = train.add_mutually_exclusive_group(required=True)
    which.add_argument("--last-epochs", type=int, metavar="N", help="N of checkpoint<EPOCH>.pt")
    which.add_argument(
        "--last-updates", type=int, metavar="N", help="N of checkpoint_<EPOCH>_<UPDATES>.pt"
    )
    which.add_argument("--best", action="store_true", help="checkpoint_best.pt")
    evaluation = stages.add_parser("evaluation", help="the output for every item of the test set")
    evaluation.add_argument("log", type=Path, help="what the evaluation printed")
    evaluation.add_argument("--data", type=Path, required=True, help="the prepared corpus")
    evaluation.add_argument("--metric", default="bleu", help="default: %(default)s")
    args = parser.parse_args(argv)
    if args.stage == "evaluation":
        from norm_plugin.experiments.metrics import find_metric  # which needs this module

        find_metric(args.metric).check_log(args.log, args.data)
    elif args.best:
        check_best(args.folder / "checkpoint_best.pt")
    elif args.last_epochs is not None:
        check_training(args.folder, "epoch", args.last_epochs)
    else:
        check_training(args.folder, "update", args.last_updates)
    return 0
