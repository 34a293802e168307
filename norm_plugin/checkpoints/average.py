"""Average the weights of several checkpoints of one run.

    norm-plugin average --inputs DIR --last-epochs 10 --output DIR/avg10.pt

Floating-point tensors, parameters and buffers alike, become their mean: summed in float64, whose
rounding is far below that of the stored types, and cast back to the type of the newest input.
Inference normalizes by the running statistics of the norms. ``--running-stats`` selects them:

    average       their mean, as for weights
    last          those of the newest input

Integer and boolean tensors are counters and switches, whose mean has no meaning (fairseq's own tool
sums them and floor-divides). They come from the newest input, as does everything else, such as the
settings. The newest input is the one with the most updates, and among equals the one given last.
Tensors that share memory in it share memory in the output. The state of the optimizer does not
belong to the averaged weights and is dropped; fairseq does not need it to decode, validate or start
fine-tuning.

A tensor with a NaN or an infinity is refused. So are checkpoints of other norms, and a checkpoint
that is given twice, even as a copy under another name.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from norm_plugin.checkpoints.files import (
    State,
    check_finite,
    is_averaged,
    load_checkpoint,
    num_updates,
    numbered_checkpoints,
    save_checkpoint,
)
from norm_plugin.checkpoints.parsers import average_parser
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import check_output, reading
from norm_plugin.io.user_dirs import check_user_dir, import_user_dir
from norm_plugin.models.resuming import TRAINING_STATE, differences, settings_of, stacks_of
from norm_plugin.models.settle import settle
from norm_plugin.norms import NORM_TYPES, NormSpec, norm_spec

KEPT_BY = {"epoch": "--keep-last-epochs", "update": "--keep-interval-updates"}
"""fairseq's flags for the number of checkpoints of a kind that a run keeps."""


_DIM = 8  # width of the norms built here to list their buffers, which do not depend on it


def running_statistics(model: State) -> set[str]:
    """Return the names of the entries of a model's state that are running statistics of its norms.

    Those are the floating-point buffers of its norms with batch statistics. A module counts as such
    a norm only if it has every buffer that the norm declares, its count of updates included, so
    that other parameters and statistics of the same name are not mistaken for one.
    """
    modules: dict[str, dict[str, str]] = {}
    for entry in model:
        module, _, name = entry.rpartition(".")
        modules.setdefault(module, {})[name] = entry
    declared = [_buffer_names(spec) for spec in map(norm_spec, NORM_TYPES) if spec.batch_statistics]
    return {
        entries[name]
        for entries in modules.values()
        for buffers in declared
        if buffers <= set(entries)
        for name in buffers
        if model[entries[name]].is_floating_point()
    }


@cache
def _buffer_names(spec: NormSpec) -> frozenset[str]:
    return frozenset(name for name, _ in spec.build(_DIM).named_buffers(recurse=False))


class RunningMean:
    """The mean of checkpoints that are added one by one.

    It holds one sum, and the other entries of the newest checkpoint.

    Args:
        running_stats: one of ``parsers.MODES``.
    """

    def __init__(self, running_stats: str = "average") -> None:
        self.running_stats = running_stats
        self.paths: list[Path] = []
        self.sums: dict[str, torch.Tensor] = {}
        self.newest: State = {}
        self.newest_path = Path()
        self.newest_updates = -1
        self.dtypes: dict[str, torch.dtype] = {}
        self.twins: dict[str, str] = {}

    def add(self, path: Path, state: State) -> None:
        """Add one checkpoint and take over its tensors; ``path`` names it in errors."""
        state.pop("last_optimizer_state", None)
        state.get("extra_state", {}).pop(TRAINING_STATE, None)  # belongs to one run at one moment
        model = state["model"]
        check_finite(path, model)
        of_newest: set[str] = set()
        if self.running_stats == "last":
            check_user_dir(state, path)
            of_newest = running_statistics(model)
        averaged = {
            name: value
            for name, value in model.items()
            if is_averaged(name, value) and name not in of_newest
        }
        if self.paths:
            self._check_same_model(path, state, averaged)
        for name, tensor in averaged.items():
            if name in self.sums:
                self.sums[name] += tensor
            else:
                self.sums[name] = tensor.to(torch.float64, copy=True)
        updates = num_updates(state)
        updates = 0 if updates is None else updates
        if updates >= self.newest_updates:
            self.newest_updates = updates
            self.newest, self.newest_path = state, path
            self.dtypes = {name: tensor.dtype for name, tensor in averaged.items()}
            self.twins = _shared_tensors(averaged)
            model.update(dict.fromkeys(averaged))  # only the sums are still needed
        self.paths.append(path)

    def _check_same_model(self, path: Path, state: State, averaged: State) -> None:
        """Raise CommandError if a checkpoint has other entries, shapes or norms."""
        first = self.paths[0].name
        problem = ""
        if differing := set(state["model"]) ^ set(self.newest["model"]):
            name = min(differing)
            owner, other = (path.name, first) if name in state["model"] else (first, path.name)
            problem = f"{owner} has the entry '{name}', but {other} does not"
        elif differing := set(averaged) ^ set(self.sums):
            problem = f"'{min(differing)}' is a floating-point tensor in only one of them"
        for name, total in self.sums.items():
            if not problem and averaged[name].shape != total.shape:
                shape, expected = tuple(averaged[name].shape), tuple(total.shape)
                problem = f"'{name}' has shape {shape} in {path.name}, but {expected} in {first}"
        problem = problem or differing_norms(path, state, self.newest_path, self.newest)
        if problem:
            raise CommandError(
                f"cannot average {path} with {first}: {problem}; "
                "give only checkpoints of one run, or of runs with the same model"
            )

    def result(self) -> State:
        """Return the checkpoint with the mean weights.

        ``averaged_from`` lists the inputs' names, ``running_stats`` names the mode.
        """
        model = self.newest["model"]
        for name, dtype in self.dtypes.items():
            mean = (self.sums[name] / len(self.paths)).to(dtype)
            twin = self.twins[name]
            model[name] = model[twin] if twin != name and torch.equal(model[twin], mean) else mean
        self.newest["averaged_from"] = [path.name for path in self.paths]
        self.newest["running_stats"] = self.running_stats
        return self.newest


def _shared_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return, for each name of a tensor, the first name of a tensor with the same memory."""
    first: dict[tuple[Any, ...], str] = {}
    return {
        name: first.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name)
        for name, tensor in tensors.items()
    }


def mean_of(paths: Sequence[Path], running_stats: str) -> RunningMean:
    """Read the checkpoints at ``paths`` one at a time, and add them up.

    Raises:
        CommandError: a checkpoint is missing, unreadable, of another model or not finite, or two
            of them are equal.
    """
    check_distinct(paths)
    mean = RunningMean(running_stats)
    for path in paths:
        state = load_checkpoint(path)
        if "averaged_from" in state:
            raise CommandError(f"{path} is itself an average; give the checkpoints of the training")
        mean.add(path, state)
    return mean


def average_checkpoints(paths: Sequence[Path], running_stats: str = "average") -> State:
    """Return the mean of the checkpoints at ``paths``; raise CommandError as :func:`mean_of`."""
    return mean_of(paths, running_stats).result()


def differing_norms(path: Path, state: State, other_path: Path, other: State) -> str:
    """Return how the norms and placements of two checkpoints differ, by their settings; else empty.

    Many norms have the same entries in the model's state, so these do not distinguish norms.

    Raises:
        CommandError: the comparison needs a ``--user-dir`` that was not imported.
    """
    settings, others = settings_of(state), settings_of(other)
    if settings is None or others is None or _norm_settings(settings) == _norm_settings(others):
        return ""
    check_user_dir(state, path)
    check_user_dir(other, other_path)
    try:
        plan, other_plan = (settle(each, stacks_of(each)) for each in (settings, others))
    except ValueError as error:
        raise CommandError(
            f"cannot compare the norms of {path} with those of {other_path}: {error}"
        ) from error
    # The runs may differ in schedule and initial weights
    names = (other_path.name, path.name)
    return "; ".join(differences(other_plan, plan, anew=True, names=names))


def _norm_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k.startswith("norm_") and v is not None}


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise CommandError if two paths are the same file, or copies of one."""
    seen: dict[tuple[Any, ...], Path] = {}
    for path in paths:
        for mark in (("file", os.path.realpath(path)), ("content", _digest(path))):
            if mark in seen:
                other = seen[mark]
                how = "the same file as" if mark[0] == "file" else "a copy of"
                raise CommandError(
                    f"{path} is {how} {other}: it would count twice in the mean; give each "
                    "checkpoint once (checkpoint_best.pt and checkpoint_last.pt are copies)"
                )
            seen[mark] = path


def _digest(path: Path) -> bytes:
    with reading(path) as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def select_checkpoints(folder: Path, kind: str, count: int, upper_bound: int | None) -> list[Path]:
    """Return the last ``count`` "epoch" or "update" checkpoints, oldest first.

    Args:
        folder: the checkpoint folder.
        kind: "epoch" or "update".
        count: how many to return.
        upper_bound: the last epoch or update to include; None: no bound.

    Raises:
        CommandError: the folder has fewer.
    """
    numbered = numbered_checkpoints(folder, kind)
    if upper_bound is not None:
        numbered = [(number, path) for number, path in numbered if number <= upper_bound]
    if len(numbered) < count:
        bound = "" if upper_bound is None else f" up to {kind} {upper_bound}"
        raise CommandError(
            f"{count} {kind} checkpoints are needed, but {len(numbered)} are in {folder}{bound}; "
            f"train longer, keep more (fairseq's {KEPT_BY[kind]}) or give a smaller number"
        )
    return [path for _, path in reversed(numbered[:count])]


def _inputs(args: argparse.Namespace) -> list[Path]:
    folders = [path for path in args.inputs if path.is_dir()]
    kind = "epoch" if args.last_epochs is not None else "update"
    count = args.last_updates if args.last_epochs is None else args.last_epochs
    if folders and len(args.inputs) > 1:
        raise CommandError(f"--inputs has the folder {folders[0]}; give one folder, or only files")
    if folders and count is None:
        raise CommandError(f"{folders[0]} is a folder: add --last-epochs or --last-updates")
    if folders:
        return select_checkpoints(folders[0], kind, count, args.upper_bound)
    if count is not None or args.upper_bound is not None:
        raise CommandError(
            "--last-epochs, --last-updates and --upper-bound select from a folder, but "
            f" --inputs {args.inputs[0]} is none; name an existing folder, or drop "
            "these flags"
        )
    return list(args.inputs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = average_parser().parse_args(argv)
    check_output(args.output)
    import_user_dir(args.user_dir)
    paths = _inputs(args)
    if os.path.realpath(args.output) in map(os.path.realpath, paths):
        raise CommandError(f"--output {args.output} is also an input; choose another name")
    mean = mean_of(paths, args.running_stats)
    state = mean.result()
    if args.running_stats == "last":
        check_user_dir(state, mean.newest_path)  # the model may have norms of the user's own
        names = running_statistics(state["model"])
        origin = f"running statistics taken from {mean.newest_path.name}"
        print(
            origin
            if names
            else "this model has no running statistics; only its weights are averaged"
        )
    save_checkpoint(state, args.output)
    print(f"averaged {', '.join(path.name for path in paths)} into {args.output}")
    return 0
