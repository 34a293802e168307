"""All claims over all placements, on as many processes as asked for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from norm_plugin.analysis.theory.claim import Options, Row
from norm_plugin.analysis.theory.claims import CLAIMS
from norm_plugin.checkpoints.building import import_user_dir

Measurements = dict[str, list[Row]]
"""By claim."""


def measure(
    names: Sequence[str], options: Options, workers: int, user_dir: Path | None
) -> Measurements:
    """The measurements of these claims.

    A placement is one piece of work, so that its claims share their passes.

    Args:
        workers: processes of one thread each; 1: this process, with its threads.
        user_dir: imported by each process.
    """
    found = {name: CLAIMS[name].measure_once(options) for name in names}
    work = partial(of_placement, tuple(names), options)
    if workers == 1:
        _join(found, map(work, options.placements), options.placements)
    else:
        with ProcessPoolExecutor(
            workers, get_context("spawn"), initializer=start_worker, initargs=(user_dir,)
        ) as pool:
            _join(found, pool.map(work, options.placements), options.placements)
    return found


def _join(found: Measurements, parts: Iterable[Measurements], placements: Iterable[str]) -> None:
    """Add the measurements of each placement to ``found``, in order, and say so."""
    for placement, part in zip(placements, parts):
        for name, rows in part.items():
            found[name] += rows
        print(f"measured {placement}", flush=True)


def of_placement(names: Sequence[str], options: Options, placement: str) -> Measurements:
    """The measurements of one placement."""
    return {name: CLAIMS[name].measure(options, placement) for name in names}


def start_worker(user_dir: Path | None) -> None:
    """Prepare a process: one thread, no log of each model, the norms of the user."""
    torch.set_num_threads(1)
    quiet()
    import_user_dir(user_dir)


def quiet() -> None:
    """Let models be built, and data be read, without lines of log."""
    for name in ("norm_plugin", "fairseq"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # torch's, of the masks that fairseq's attention gives it
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
