"""Predict the labels of a split by a trained classifier.

``norm-plugin predict DATA --path checkpoint_best.pt`` prints a line for each sentence of a split,
and the accuracy (fairseq-validate would round it to one decimal place):

    P-0	1	0	-0.7133
    P-1	0	0	-0.1034
    Predict test: accuracy = 50.00, 1 of 2

Each line has the index of the sentence in the corpus, its label, the predicted label, and the
natural logarithm of the probability of the prediction. ``--calibrate SPLIT`` adds one line: the
loss of the checkpoint on that split without and with temperature scaling (calibration.py):

    Calibration valid: loss = 1.9134 bits, calibrated = 1.8902 bits, temperatures = 1.31 and 1.27
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from norm_plugin.checkpoints.calibration import CalibratedLoss, calibrate
from norm_plugin.checkpoints.fairseq_input import batches_of, fairseq_errors
from norm_plugin.io.command_line import CommandError, Parser

if TYPE_CHECKING:
    from torch import Tensor


TASK = "sentence_prediction"
MAX_TOKENS = 4096  # per batch


class Prediction(NamedTuple):
    """The prediction for one sentence."""

    number: int
    label: str
    predicted: str
    log_probability: float


class Evaluation(NamedTuple):
    """What the command computes.

    Attributes:
        predictions: those of a split, in the order of the corpus.
        calibration: the losses on the split of ``--calibrate``; None without it.
    """

    predictions: list[Prediction]
    calibration: CalibratedLoss | None


def lines_of(predictions: Sequence[Prediction], split: str) -> Iterator[str]:
    """Yield the lines that the command prints of a split."""
    for number, label, predicted, log_probability in predictions:
        yield f"P-{number}\t{label}\t{predicted}\t{log_probability:.4f}"
    correct = count_correct(predictions)
    share = 100 * correct / len(predictions)
    yield f"Predict {split}: accuracy = {share:.2f}, {correct} of {len(predictions)}"


def count_correct(predictions: Sequence[Prediction]) -> int:
    """Return the number of sentences whose label was predicted."""
    return sum(label == predicted for _, label, predicted, _ in predictions)


def load_classifier(checkpoint: Path, data: Path, fold: bool) -> tuple[Any, Any]:
    """Load the classifier of a checkpoint, in eval mode, and its task.

    Raises:
        CommandError: the checkpoint is of another task, or does not fit the data.
    """
    import torch

    from norm_plugin.checkpoints.building import build_model
    from norm_plugin.checkpoints.files import load_checkpoint
    from norm_plugin.models.folding import fold_and_log

    state = load_checkpoint(checkpoint)
    cfg = state.get("cfg") or {}
    task_name = (cfg.get("task") or {}).get("_name")
    if task_name != TASK:
        arch = getattr(cfg.get("model"), "arch", None) or "model"
        raise CommandError(
            f"{checkpoint} is a {arch} of the task {task_name}, not a classifier; give a "
            f"checkpoint that was trained with --task {TASK}"
        )
    model, _, task = build_model(checkpoint, data, state)
    if fold:
        fold_and_log(str(checkpoint), model)
    model.eval()
    return (model.cuda() if torch.cuda.is_available() else model), task


def evaluate(model: Any, task: Any, split: str) -> Iterator[tuple[int, Tensor, int]]:
    """Yield number, logits and label of each sentence of a split, in the order of the batches.

    Raises:
        CommandError: a logit is not finite.
    """
    with fairseq_errors(f"make batches of the {split} sentences in {task.cfg.data}"):
        dataset = task.load_dataset(split)
        batches = task.get_batch_iterator(
            dataset, max_tokens=MAX_TOKENS, max_positions=task.max_positions()
        )
    for batch in batches_of(batches.next_epoch_itr(shuffle=False), task.cfg.data):
        if "target" not in batch:
            raise CommandError(f"{task.cfg.data} has no labels for the {split} sentences")
        yield from evaluate_batch(model, task, batch)


def evaluate_batch(
    model: Any, task: Any, batch: dict[str, Any]
) -> Iterator[tuple[int, Tensor, int]]:
    """Yield number, logits and label of each sentence of a batch; see :func:`evaluate`."""
    import torch

    device = next(model.parameters()).device
    source = {name: value.to(device) for name, value in batch["net_input"].items()}
    head = task.cfg.classification_head_name
    with torch.inference_mode():
        logits, _ = model(**source, features_only=True, classification_head_name=head)
    if not logits.isfinite().all():
        raise CommandError("the classifier outputs NaN or infinity: its training has diverged")
    labels = batch["target"].view(-1).tolist()
    yield from zip(batch["id"].tolist(), logits.float().cpu(), labels)


def predict(model: Any, task: Any, split: str) -> list[Prediction]:
    """Predict a split, in the order of the corpus; CommandError for a diverged model."""
    words = task.label_dictionary
    predictions = []
    for number, logits, label in evaluate(model, task, split):
        value, best = logits.log_softmax(dim=-1).max(dim=-1)
        true, given = (words[words.nspecial + int(each)] for each in (label, best))
        predictions.append(Prediction(number, true, given, float(value)))
    return sorted(predictions)


def calibrate_on(model: Any, task: Any, split: str) -> CalibratedLoss:
    """Return the losses on a split, without and with temperature scaling."""
    import torch

    _, logits, labels = zip(*sorted(evaluate(model, task, split), key=lambda each: each[0]))
    return calibrate(torch.stack(logits), torch.tensor(labels))


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    run(argv)
    return 0


def run(argv: Sequence[str]) -> Evaluation:
    """Run the command; return what it prints."""
    parser = Parser(
        prog="norm-plugin predict",
        description="Predict the labels of a split, and print the accuracy.",
        example="norm-plugin predict work/data/rte/bin --path checkpoints/checkpoint_best.pt",
    )
    add = parser.add_argument
    add("data", type=Path, metavar="DATA", help="the folder of the binarized data")
    add("--path", type=Path, required=True, metavar="FILE", help="a checkpoint")
    add("--gen-subset", default="test", metavar="SPLIT", help="default: %(default)s")
    text = "also print the loss on this split, without and with temperature scaling"
    add("--calibrate", metavar="SPLIT", help=text)
    text = "fold norms with running statistics into the linear maps that follow, where possible"
    add("--fold-norms", action="store_true", help=text)
    from norm_plugin.io.user_dirs import add_user_dir, import_user_dir

    add_user_dir(parser)
    args = parser.parse_args(argv)
    import_user_dir(args.user_dir)
    model, task = load_classifier(args.path, args.data, args.fold_norms)
    predictions = predict(model, task, args.gen_subset)
    for line in lines_of(predictions, args.gen_subset):
        print(line)
    calibration = None
    if args.calibrate:
        calibration = calibrate_on(model, task, args.calibrate)
        even, odd = calibration.temperatures
        print(
            f"Calibration {args.calibrate}: loss = {calibration.loss:.6f} bits, calibrated = "
            f"{calibration.calibrated:.6f} bits, temperatures = {even:.4f} and {odd:.4f}"
        )
    return Evaluation(predictions, calibration)
