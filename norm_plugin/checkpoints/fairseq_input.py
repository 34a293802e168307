"""Turn what fairseq raises about bad input into one-line errors, and read its dictionaries.

fairseq's loaders raise AssertionError, RuntimeError and bare Exception for a missing dictionary,
sides of different lengths or a sentence that is too long. fairseq is imported only when needed.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import norm_plugin
from norm_plugin.io.command_line import CommandError

UNFIT = (OSError, RuntimeError, ValueError, LookupError)
"""What fairseq, torch and our models raise if settings, weights and data do not fit together."""
OUR_CODE = Path(norm_plugin.__file__).parent


@contextmanager
def fairseq_errors(doing: str) -> Iterator[None]:
    """Turn an error about fairseq's input into a CommandError: ``cannot DOING: reason``.

    Errors of other types than UNFIT that our own code raises are bugs, and are not caught.
    """
    try:
        yield
    except (CommandError, MemoryError):
        raise
    except Exception as error:
        innermost = traceback.extract_tb(error.__traceback__)[-1]
        if not isinstance(error, UNFIT) and OUR_CODE in Path(innermost.filename).parents:
            raise
        # an assertion often has no message
        reason = str(error) or f"{type(error).__name__} at {innermost.line}"
        raise CommandError(f"cannot {doing}: {reason}") from error


def batches_of(batches: Iterable[Any], data: str) -> Iterator[Any]:
    """Yield the batches of a fairseq iterator; errors are reported as those of ``data``."""
    iterator = iter(batches)
    while True:
        with fairseq_errors(f"read the batches of the data in {data}"):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def train_batches(model: Any, cfg: Any, task: Any) -> Iterator[Any]:
    """Yield the batches of a run on one worker, as its trainer makes them, epoch after epoch."""
    from fairseq.utils import resolve_max_positions

    subset, limit = cfg.dataset.train_subset, cfg.dataset.max_tokens
    with fairseq_errors(f"make training batches of the data in {cfg.task.data}"):
        task.load_dataset(subset, epoch=1, combine=True)
        epochs = task.get_batch_iterator(
            dataset=task.dataset(subset),
            max_tokens=limit,
            max_sentences=cfg.dataset.batch_size,
            max_positions=resolve_max_positions(task.max_positions(), model.max_positions(), limit),
            ignore_invalid_inputs=True,
            required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
            seed=cfg.common.seed,
        )
    if not len(epochs):
        raise CommandError(f"the training data in {cfg.task.data} is less than one batch")
    while True:
        yield from batches_of(epochs.next_epoch_itr(), cfg.task.data)


def load_dictionary(path: Path) -> Any:
    """Read a fairseq dictionary from a ``dict.txt``, without a byte order mark.

    Raises:
        CommandError: the file cannot be read, is not UTF-8, is empty, or is not a dictionary.
    """
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    with (
        fairseq_errors(f"read the dictionary {path}"),
        open(path, encoding="utf-8-sig") as stream,
    ):
        dictionary.add_from_file(stream)
    if len(dictionary) == dictionary.nspecial:
        raise CommandError(f"the dictionary {path} is empty; give the dict.txt of the model's data")
    return dictionary
