"""The command ``result``: collects the result of a finished run from its files.

A result has the scores, settings, commit, versions, data, size and speed; unknown values are null.
It is written to ``<experiment>/<norm>-seed<N>.json`` in ``--out``, with translations and statistics
beside it; see results.py.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import enum
import json
import math
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import norm_plugin
from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import State, load_checkpoint, num_updates
from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import CommandError, read_json
from norm_plugin.experiments.metrics import METRICS, find_metric
from norm_plugin.experiments.results import SCHEMA, Result, keep_files, summary, write_result
from norm_plugin.experiments.state import curves_of_log, read_stamp
from norm_plugin.models.plan import RECORDS


def collect_result(args: argparse.Namespace) -> Result:
    """The result of a finished run, from its files; CommandError if they do not agree."""
    manifest = read_json(args.data / "manifest.json")
    last, decoded = load_checkpoint(args.last), load_checkpoint(args.checkpoint)
    cfg = last.get("cfg") or {}
    common = cfg.get("common") or {}
    if common.get("seed") not in (None, args.seed):
        raise CommandError(
            f"--seed {args.seed}, but {args.last} was trained with seed {common['seed']}"
        )
    memory = None if args.memory is None else read_stamp(args.memory)
    model = describe_model(args.checkpoint, args.data / "bin")
    return {
        "schema": SCHEMA,
        "experiment": args.experiment,
        "norm": args.norm,
        "differs": args.differs,
        "sources": args.sources,
        "seed": args.seed,
        "sites": model.pop("sites"),
        "metric": args.metric,
        "scores": find_metric(args.metric).scores(args.log, args.data, args.split),
        "split": args.split,
        "model": model,
        "training": {
            **describe_training(last),
            "peak_memory": None if memory is None else int(memory),
        },
        "curves": None if args.train_log is None else curves_of_log(args.train_log),
        "averaged_from": decoded.get("averaged_from"),
        "running_stats": decoded.get("running_stats"),
        "settings": plain_settings(cfg),
        "data": {
            "corpus": manifest.get("corpus"),
            "settings": manifest.get("settings"),
            "checksum": manifest.get("checksum"),
            "training_pairs": training_pairs(manifest),
        },
        "git": git_state(Path(__file__).parent),
        "versions": versions(),
        "machine": machine(cpu=bool(common.get("cpu"))),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def describe_training(state: State) -> dict[str, Any]:
    """The length, time and speed of a training, from its last checkpoint; None if unknown.

    ``seconds`` is the wall time over all resumes, including validation and saving. The speeds are
    those of the training steps alone (``train_wall``): forward, backward and optimizer. fairseq
    resets its meters when a run is resumed at the end of an epoch, so the speeds are means over the
    ``measured_updates`` since then. ``tokens`` are target tokens, as fairseq counts them.
    """
    extra = state.get("extra_state") or {}
    epoch = (extra.get("train_iterator") or {}).get("epoch")
    checkpoint = (state.get("cfg") or {}).get("checkpoint") or {}
    # a meter is stored as (priority, name, class, state), under its group
    default = (extra.get("metrics") or {}).get("default", [])
    meters = {name: meter for _, name, _, meter in default}
    seconds = _number(meters.get("train_wall", {}).get("sum"))
    updates = _number(meters.get("wpb", {}).get("count"))
    tokens = _number(meters.get("wpb", {}).get("sum"))
    speeds: dict[str, Any] = dict.fromkeys(
        ("updates_per_second", "tokens_per_second", "measured_updates")
    )
    if seconds and updates and tokens:
        speeds = {
            "updates_per_second": _rounded(updates / seconds, 3),
            "tokens_per_second": _rounded(tokens / seconds, 1),
            "measured_updates": int(updates),
        }
    return {
        "updates": num_updates(state),
        "epochs": None if epoch is None else epoch - 1,  # the stored one is the next to finish
        "seconds": _rounded(_number(extra.get("previous_training_time")), 1),
        **speeds,
        "best_valid": {
            "metric": checkpoint.get("best_checkpoint_metric"),
            "value": _rounded(_number(extra.get("best")), 4),
        },
    }


def _number(value: Any) -> float | None:
    """A number; runs with several workers store some as tensors."""
    return None if value is None else float(value)


def _rounded(value: float | None, digits: int) -> float | None:
    """A rounded number; None if it is not finite, as JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def describe_model(checkpoint: Path, binarized: Path) -> dict[str, Any]:
    """The size and the norms of the model in a checkpoint.

    Args:
        binarized: the folder of the binarized data, for the dictionaries.

    Returns:
        ``parameters``, the number of trainable parameters, with tied ones counted once;
        ``norm_parameters``, the number of those in norms; and ``sites``, the norm of every site
        (None for a model of fairseq's own).

    Raises:
        CommandError: model and data do not fit together.
    """
    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.plan import make_plan
    from norm_plugin.models.sites import sides_of

    model, cfg, _ = build_model(checkpoint, binarized)
    ours = isinstance(model, NormModel)
    plan = model.cfg.plan if ours else make_plan(cfg.model, sides_of(model))
    norms = {
        parameter
        for choice in plan.sites
        for path, module in model.named_modules()
        if choice.site.is_at(path)
        for parameter in module.parameters()
    }
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "norm_parameters": sum(p.numel() for p in norms if p.requires_grad),
        "sites": {choice.site.name: choice.norm for choice in plan.sites} if ours else None,
    }


def training_pairs(manifest: Mapping[str, Any]) -> int | None:
    """The number of training examples in a prepared corpus; None for running text or if unknown."""
    if (manifest.get("settings") or {}).get("unit"):
        return None
    counts = manifest.get("counts") or {}
    text = counts.get("bpe") or counts.get("tok") or {}
    pairs: int | None = (text.get(f"train.{manifest.get('source')}") or {}).get("lines")
    return pairs


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="norm-plugin result",
        description="Write the result of a finished run to OUT/<experiment>/<norm>-seed<N>.json.",
    )
    parser.add_argument("--experiment", required=True, help="name of the experiment")
    parser.add_argument("--norm", required=True, help="the label of the run")
    parser.add_argument("--seed", type=int, required=True)
    for flag, text in (
        ("--differs", "the settings that differ from the recipe"),
        ("--sources", "the digests of the files of the user dir that the training depends on"),
    ):
        parser.add_argument(flag, type=json.loads, default={}, metavar="JSON", help=text)
    parser.add_argument(
        "--metric", choices=list(METRICS), default="bleu", help="default: %(default)s"
    )
    parser.add_argument(
        "--log",
        "--generate-log",
        type=Path,
        required=True,
        metavar="FILE",
        help="the output of the evaluation: for BLEU, of fairseq-generate --remove-bpe",
    )
    for flag, required, text in (
        ("--checkpoint", True, "the checkpoint that was evaluated: for BLEU, the average"),
        ("--last", True, "the run's last checkpoint, for settings, time and speed"),
        ("--train-log", False, "the output of fairseq-train, for the losses over training"),
        ("--memory", False, "a file with the peak memory of the training in bytes; may be missing"),
        ("--record", False, f"the file of --norm-record (default: {RECORDS} beside --last)"),
    ):
        parser.add_argument(flag, type=Path, required=required, metavar="FILE", help=text)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="the prepared corpus, with manifest.json and bin/",
    )
    parser.add_argument("--split", default="test", help="default: %(default)s")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("work") / "results",  # what is in results/ is published, and tracked by git
        metavar="DIR",
        help="default: %(default)s",
    )
    add_user_dir(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The command line; prints a short summary."""
    args = _parse(argv)
    import_user_dir(args.user_dir)
    result = collect_result(args)
    path = write_result(result, args.out)
    record = args.last.with_name(RECORDS) if args.record is None else args.record
    translations = find_metric(args.metric).texts(args.log, args.data)
    has_record = args.record is not None or record.exists()
    entries = keep_files(path, translations, record if has_record else None, args.checkpoint)
    write_result({**result, "kept": entries}, args.out)
    print(f"{summary(result)}\n  written to {path}")
    return 0


# --- code, versions, machine and settings --------------------------------------------------------

SECTIONS = (
    *("common", "model", "task", "criterion", "dataset", "optimization", "optimizer"),
    *("lr_scheduler", "checkpoint", "distributed_training"),
)
"""The sections of fairseq's configuration that determine a run."""
PATH_KEYS = {
    *("aim_repo", "continue_once", "data", "distributed_init_method", "distributed_port"),
    *("finetune_from_model", "log_file", "plasma_path", "restore_file", "save_dir"),
    *("tensorboard_logdir", "user_dir"),
}
"""Keys of settings that are paths or addresses; others are recognized by their value."""
ABSOLUTE_PATH = re.compile(r"""(^|[\s"'=:,;(\[{])(~?/|[A-Za-z]:\\)[^\s]""")
NOT_CODE = (":!results", ":!benchmarks/results", ":!*.md", ":!*.tuned.json")
"""Files whose changes do not affect a run; tuned values are also among its settings."""


def plain_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in a checkpoint in types that JSON has, without paths.

    fairseq stores all flags of a command line under ``model``. Those that another section has with
    the same value are left out there.
    """
    sections = {name: _plain(_as_mapping(cfg.get(name))) for name in SECTIONS}
    elsewhere: dict[str, list[Any]] = {}
    for name, section in cfg.items():
        elsewhere.setdefault(name, []).append(_as_mapping(section).get("_name"))
        if name != "model":
            for key, value in _plain(_as_mapping(section)).items():
                elsewhere.setdefault(key, []).append(value)
    model = sections["model"]
    sections["model"] = {
        key: value for key, value in model.items() if value not in elsewhere.get(key, [])
    }
    sections["model"].update({key: model[key] for key in ("_name", "arch") if key in model})
    return sections


def _as_mapping(section: Any) -> Mapping[str, Any]:
    if isinstance(section, argparse.Namespace):
        return vars(section)
    return section if isinstance(section, Mapping) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items() if not _is_path(key, item)}
        return {key: _plain(item) for key, item in sorted(items.items())}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value if not _is_path("", item)]
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if torch.is_tensor(value):
        return value.tolist()
    return type(value).__name__


def _is_path(key: Any, value: Any) -> bool:
    return key in PATH_KEYS or (isinstance(value, str) and bool(ABSOLUTE_PATH.search(value)))


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages; None if not installed."""
    return {
        "python": platform.python_version(),
        "norm_plugin": norm_plugin.__version__,
        "torch": _version("torch"),
        "fairseq": _version("fairseq-fixed") or _version("fairseq"),
        "sacrebleu": _version("sacrebleu"),
        "sacremoses": _version("sacremoses"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any]:
    """The ``commit`` of the checkout that tracks ``folder``, and whether its code is ``dirty``.

    Both are None if no checkout tracks the folder, as for an installed package.
    """
    tracked = _git(folder, "ls-files", ".")
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    root = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return {"commit": None, "dirty": None}
    changes = _git(Path(root), "status", "--porcelain", "--", ".", *NOT_CODE)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def short_commit(git: Mapping[str, Any]) -> str:
    """The result of :func:`git_state` as text: ``0123456789 and changes``."""
    return (git.get("commit") or "unknown")[:10] + (" and changes" if git.get("dirty") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        finished = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return finished.stdout.strip()


def machine(cpu: bool) -> dict[str, Any]:
    """The device, threads and CPU instructions of this process.

    Args:
        cpu: whether ``--cpu`` was given; otherwise fairseq uses a GPU if there is one.
    """
    on_gpu = torch.cuda.is_available() and not cpu
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        # whether a preloaded library makes MKL take the CPU for Intel's: docs/troubleshooting.md
        "mkl_as_on_intel": hasattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true"),
    }
