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
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from norm_plugin.checkpoints.files import (
    State,
    check_finite,
    is_averaged,
    load_checkpoint,
    num_updates,
    save_checkpoint,
)
from norm_plugin.checkpoints.parsers import average_parser
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import check_output, reading
from norm_plugin.io.user_dirs import check_user_dir, import_user_dir
from norm_plugin.models.resuming import TRAINING_STATE, differences, settings_of, stacks_of
from norm_plugin.models.settle import settle
from norm_plugin.norms import NORM_TYPES, norm_spec

NAMES = {
    "epoch": re.compile(r"checkpoint(\d+)\.pt"),
    "update": re.compile(r"checkpoint_\d+_(\d+)\.pt"),
}
"""fairseq's file name of each kind, whose group is the number of epochs or updates."""
KEPT_BY = {"epoch": "--keep-last-epochs", "update": "--keep-interval-updates"}
"""fairseq's flags for the number of checkpoints of a kind that a run keeps."""
NOT_AVERAGED = "not averaged"

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
    specs = [spec for spec in map(norm_spec, NORM_TYPES) if spec.batch_statistics]
    declared = [
        {name for name, _ in spec.build(_DIM).named_buffers(recurse=False)} for spec in specs
    ]
    return {
        entries[name]
        for entries in modules.values()
        for buffers in declared
        if buffers <= entries.keys()
        for name in buffers
        if model[entries[name]].is_floating_point()
    }


def average_checkpoints(paths: Sequence[Path], running_stats: str = "average") -> State:
    """Return the mean of the checkpoints at ``paths``, which are read one at a time.

    Its entry ``averaged_from`` lists the inputs' names, and ``running_stats`` is the argument.

    Args:
        running_stats: one of ``parsers.MODES``.

    Raises:
        CommandError: a checkpoint is missing, unreadable, of another model or not finite, or two
            of them are equal.
    """
    check_distinct(paths)
    sums: dict[str, torch.Tensor] = {}
    kinds: dict[str, str] = {}
    newest, newest_path = dict[str, Any](), Path()
    for path in paths:
        state = load_checkpoint(path)
        if "averaged_from" in state:
            raise CommandError(f"{path} is itself an average; give the checkpoints of the training")
        state.pop("last_optimizer_state", None)
        state.get("extra_state", {}).pop(TRAINING_STATE, None)  # belongs to one run at one moment
        check_finite(path, state["model"])
        kinds_before, kinds = kinds, _kinds(path, state, running_stats)
        if newest:
            problem = _differing_kinds(paths[0].name, kinds_before, path.name, kinds)
            if problem := problem or differing_norms(path, state, newest_path, newest):
                raise CommandError(
                    f"cannot average {path} with {paths[0].name}: {problem}; "
                    "give only checkpoints of one run, or of runs with the same model"
                )
        for name in (name for name, kind in kinds.items() if kind != NOT_AVERAGED):
            if name in sums:
                sums[name] += state["model"][name]
            else:
                sums[name] = state["model"][name].to(torch.float64, copy=True)
        if not newest or (num_updates(state) or 0) >= (num_updates(newest) or 0):
            newest, newest_path = state, path
    model = newest["model"]
    means: dict[tuple[Any, ...], torch.Tensor] = {}  # by the memory of the newest input
    for name, total in sums.items():
        own = model[name]
        mean = (total / len(paths)).to(own.dtype)
        tied = means.setdefault((own.data_ptr(), own.shape, own.stride()), mean)
        # an older input may have had two tensors where the newest has one
        model[name] = tied if torch.equal(tied, mean) else mean
    newest["averaged_from"] = [path.name for path in paths]
    newest["running_stats"] = running_stats
    return newest


def _kinds(path: Path, state: State, running_stats: str) -> dict[str, str]:
    """Return the shape of each entry of a model's state that is averaged, else NOT_AVERAGED."""
    of_newest: set[str] = set()
    if running_stats == "last":
        check_user_dir(state, path)  # the model may have norms of the user's own
        of_newest = running_statistics(state["model"])
    return {
        name: f"of shape {tuple(value.shape)}"
        if is_averaged(name, value) and name not in of_newest
        else NOT_AVERAGED
        for name, value in state["model"].items()
    }


def _differing_kinds(
    first: str, kinds_of_first: Mapping[str, str], name: str, kinds: Mapping[str, str]
) -> str:
    """Return how an entry of a checkpoint differs from that of the first one; empty: none does."""
    for entry in sorted({*kinds, *kinds_of_first}):
        kind, of_first = (each.get(entry, "absent") for each in (kinds, kinds_of_first))
        if kind != of_first:
            return f"'{entry}' is {kind} in {name}, but {of_first} in {first}"
    return ""


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
    plan, other_plan = (settle(each, stacks_of(each)) for each in (settings, others))
    # The runs may differ in schedule and initial weights
    names = (other_path.name, path.name)
    return "; ".join(differences(other_plan, plan, anew=True, names=names))


def _norm_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k.startswith("norm_") and v is not None}


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise CommandError if two paths are the same file, or copies of one."""
    seen: dict[bytes, Path] = {}
    for path in paths:
        with reading(path) as stream:
            digest = hashlib.file_digest(stream, "sha256").digest()
        if digest in seen:
            raise CommandError(
                f"{path} is the same checkpoint as {seen[digest]}, and would count twice in the "
                "mean; give each once (checkpoint_best.pt and checkpoint_last.pt are copies)"
            )
        seen[digest] = path


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
    found = ((NAMES[kind].fullmatch(path.name), path) for path in folder.iterdir())
    numbered = sorted((int(match.group(1)), path) for match, path in found if match)
    if upper_bound is not None:
        numbered = [(number, path) for number, path in numbered if number <= upper_bound]
    if len(numbered) < count:
        bound = "" if upper_bound is None else f" up to {kind} {upper_bound}"
        raise CommandError(
            f"{count} {kind} checkpoints are needed, but {len(numbered)} are in {folder}{bound}; "
            f"train longer, keep more (fairseq's {KEPT_BY[kind]}) or give a smaller number"
        )
    return [path for _, path in numbered[-count:]]


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
    state = average_checkpoints(paths, args.running_stats)
    save_checkpoint(state, args.output)
    print(f"averaged {', '.join(state['averaged_from'])} into {args.output}")
    if args.running_stats == "last":
        if running_statistics(state["model"]):
            print(f"running statistics are those of update {num_updates(state)}")
        else:
            print("this model has no running statistics")
    return 0
