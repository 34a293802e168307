"""Running statistics in place of those of the batch.

Shen et al. 2020 (PowerNorm), section III-A, explain the lower score of batch normalization in a
Transformer by inference: it normalizes by running statistics, which differ from those of the
batches. If so, a trained model has a higher loss with running statistics than with those of the
batch itself, in the same batches.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from norm_lab.study.significance import describe
from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.fairseq_input import batches_of, fairseq_errors
from norm_plugin.checkpoints.files import load_checkpoint, num_updates
from papers.theory.claim import Options, Row, cases, verdict
from papers.theory.models import batch_of, translation_setting
from papers.theory.trained import without_dropout

CASE = ("norm", "updates", "data")
BATCHES = 32
"""The number of batches of each split, or all if it has fewer."""


def measure_once(options: Options) -> Iterator[Row]:
    """Measure the loss with both statistics, in batches of the training and validation data."""
    for path in options.checkpoints:
        yield from measure_checkpoint(path, options.data)


def measure_checkpoint(path: Path, data: Path | None) -> Iterator[Row]:
    """Yield the rows of one checkpoint; without ``data``, on the data of its training.

    Raises:
        CommandError: the checkpoint cannot be read, or does not fit the data.
    """
    state = load_checkpoint(path)
    model, cfg, task = build_model(path, data, state)
    pad = task.target_dictionary.pad()
    for name, subset in (("training", cfg.dataset.train_subset), ("validation", "valid")):
        for seed, sample in enumerate(first_batches(cfg, task, subset)):
            losses = {}
            for statistics, training in (("running", False), ("batch", True)):
                own = copy.deepcopy(model).train(training)  # whose running statistics it updates
                without_dropout(own)
                with torch.no_grad():
                    loss = translation_setting(own, batch_of(sample), pad).mean_loss()
                losses[statistics] = float(loss) / math.log(2)
            row = {"norm": str(model.cfg.norm_type), "updates": num_updates(state), "data": name}
            yield {**row, "seed": seed, **losses}


def first_batches(cfg: Any, task: Any, subset: str) -> Iterator[Any]:
    """Return the first batches of a split, as large as those of training, each sentence once."""
    with fairseq_errors(f"make batches of the data in {cfg.task.data}"):
        task.load_dataset(subset)
        epoch = task.get_batch_iterator(
            task.dataset(subset), max_tokens=cfg.dataset.max_tokens, seed=cfg.common.seed
        ).next_epoch_itr()
    return itertools.islice(batches_of(epoch, cfg.task.data), BATCHES)


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether the loss is higher with running statistics, by the interval over batches."""
    for row, some in cases(frame, *CASE):
        sample = describe(list(some["running"] - some["batch"]))
        low, high = sample.interval
        holds = True if low > 0 else False if high < 0 else None
        losses = {f"{name} statistics": f"{some[name].mean():.3f}" for name in ("running", "batch")}
        yield {**row, **losses, **verdict("running minus batch > 0", sample, holds)}
