"""Predict the label of each sentence of a split with a trained classifier.

    norm-plugin predict DATA --path checkpoint_best.pt

fairseq-validate computes the same accuracy, and rounds it to one digit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.metrics.accuracy import Prediction, lines_of

TASK = "sentence_prediction"
MAX_TOKENS = 4096  # of a batch


def load_classifier(checkpoint: Path, data: Path, fold: bool) -> tuple[Any, Any]:
    """The classifier of a checkpoint, ready to predict, and its task.

    Raises CommandError for a checkpoint of another task, and where it does not fit the data.
    """
    from norm_plugin.models.folding import fold_and_log

    cfg = load_checkpoint(checkpoint).get("cfg") or {}
    task_name = (cfg.get("task") or {}).get("_name")
    if task_name != TASK:
        arch = getattr(cfg.get("model"), "arch", None) or "model"
        raise CommandError(
            f"{checkpoint} is a {arch} of the task {task_name}, not a classifier; give a "
            f"checkpoint that was trained with --task {TASK}"
        )
    model, _, task = build_model(checkpoint, data)
    if fold:
        fold_and_log(str(checkpoint), model)
    model.eval()
    return (model.cuda() if torch.cuda.is_available() else model), task


@torch.inference_mode()
def predict(model: Any, task: Any, split: str) -> list[Prediction]:
    """The predictions of a split, in the order of the corpus.

    Raises CommandError for a split that is not there, and for a model that has diverged.
    """
    text = Path(task.cfg.data) / "input0" / f"{split}.idx"
    if not text.is_file():
        raise CommandError(f"{task.cfg.data} has no split {split}: there is no {text}")
    dataset = task.load_dataset(split)
    batches = task.get_batch_iterator(
        dataset, max_tokens=MAX_TOKENS, max_positions=task.max_positions()
    )
    return sorted(
        prediction
        for batch in batches.next_epoch_itr(shuffle=False)
        for prediction in predict_batch(model, task, batch)
    )


def predict_batch(model: Any, task: Any, batch: dict[str, Any]) -> Iterator[Prediction]:
    """The predictions of one batch; CommandError where a logit is not finite."""
    device = next(model.parameters()).device
    source = {name: value.to(device) for name, value in batch["net_input"].items()}
    head = task.cfg.classification_head_name
    logits, _ = model(**source, features_only=True, classification_head_name=head)
    if not logits.isfinite().all():
        raise CommandError("the classifier gives NaN or infinity: its training has diverged")
    log_probabilities, classes = functional.log_softmax(logits.float(), dim=-1).max(dim=-1)
    labels = batch["target"].view(-1)
    for number, label, predicted, value in zip(batch["id"], labels, classes, log_probabilities):
        true, given = (label_name(task, int(each)) for each in (label, predicted))
        yield Prediction(int(number), true, given, float(value))


def label_name(task: Any, number: int) -> str:
    """The label of a class."""
    dictionary = task.label_dictionary
    name: str = dictionary[number + dictionary.nspecial]
    return name


def main(argv: Sequence[str]) -> int:
    """The command line; prints the predictions and the accuracy."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin predict",
        description="Predict the labels of a split, and print the accuracy.",
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder of the binarized data")
    parser.add_argument("--path", type=Path, required=True, metavar="FILE", help="a checkpoint")
    parser.add_argument(
        "--gen-subset", default="test", metavar="SPLIT", help="default: %(default)s"
    )
    parser.add_argument(
        "--fold-norms",
        action="store_true",
        help="fold norms with running statistics into the linear maps after them where possible",
    )
    add_user_dir(parser)
    args = parser.parse_args(argv)
    import_user_dir(args.user_dir)
    model, task = load_classifier(args.path, args.data, args.fold_norms)
    for line in lines_of(predict(model, task, args.gen_subset), args.gen_subset):
        print(line)
    return 0
