"""The result of a finished run, from its files.

It has the scores, settings, code, versions, data, size and speed; what is unknown is null. It is
written to ``<experiment>/<norm>-seed<N>.json`` in ``--out``, with the translations and the
statistics over training beside it; see results.py.
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
    model = model_facts(args.checkpoint, args.data / "bin")
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
            **training_facts(last),
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


def training_facts(state: State) -> dict[str, Any]:
    """Length, time and speed of the run, from its last checkpoint; None for what is not there.

    ``seconds`` is wall time over all resumes, validation and saving included. The speeds are those
    of the training steps alone (``train_wall``): forward, backward and optimizer. fairseq's meters
    start anew when a run is resumed at an epoch's end, so the speeds are means over the
    ``measured_updates`` since then; ``tokens`` are those of the target side, as fairseq counts.
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
    """Runs with several workers store some numbers as tensors."""
    return None if value is None else float(value)


def _rounded(value: float | None, digits: int) -> float | None:
    """None also for a diverged run's NaN, which JSON has no word for."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def model_facts(checkpoint: Path, binarized: Path) -> dict[str, Any]:
    """Size and norms of the model in a checkpoint, which fairseq builds anew.

    Args:
        binarized: holds the dictionaries.

    Returns:
        ``parameters``, the trainable ones with tied ones counted once; ``norm_parameters``, those
        of the norms among them; and ``sites``, the norm of every site that the model has (None for
        a model that is not ours).

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
    """The number of examples that a prepared corpus trains on; None where it is not written.

    A running text, whose unit is a word or a character, has none.
    """
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
    parser.add_argument("--norm", required=True, help="the norm that the run was started with")
    parser.add_argument("--seed", type=int, required=True)
    for flag, text in (
        ("--differs", "the settings that differ from the recipe"),
        ("--sources", "the digests of the files of the user dir that the training rests on"),
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
        ("--train-log", False, "what fairseq-train printed; its losses become part of the result"),
        ("--memory", False, "the peak memory of the training in bytes; it need not exist"),
        ("--record", False, f"of --norm-record (default: {RECORDS} beside --last, if any)"),
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
"""Of fairseq's configuration: those that determine a run."""
PLACES = {
    *("aim_repo", "continue_once", "data", "distributed_init_method", "distributed_port"),
    *("finetune_from_model", "log_file", "plasma_path", "restore_file", "save_dir"),
    *("tensorboard_logdir", "user_dir"),
}
"""Keys that name places on a machine, wherever they stand; the rest is caught by its value."""
ABSOLUTE_PATH = re.compile(r"""(^|[\s"'=:,;(\[{])(~?/|[A-Za-z]:\\)[^\s]""")
NOT_CODE = (":!results", ":!benchmarks/results", ":!*.md", ":!*.tuned.json")
"""Files whose changes do not affect a run, or that its settings repeat: what tuning chose."""


def plain_settings(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration stored in a checkpoint as plain JSON types, without paths.

    A command line stores all of its flags under ``model``; those that another section holds with
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
        items = {str(key): item for key, item in value.items() if not _is_place(key, item)}
        return {key: _plain(item) for key, item in sorted(items.items())}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value if not _is_place("", item)]
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if torch.is_tensor(value):
        return value.tolist()
    return type(value).__name__


def _is_place(key: Any, value: Any) -> bool:
    return key in PLACES or (isinstance(value, str) and bool(ABSOLUTE_PATH.search(value)))


def versions() -> dict[str, str | None]:
    """Versions of what computes the result; None for what is not installed."""
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
    """``commit`` of the checkout that tracks ``folder`` and whether its code is ``dirty``.

    Both are None outside a checkout, also where a package is installed in somebody else's.
    """
    tracked = _git(folder, "ls-files", ".")
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    root = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return {"commit": None, "dirty": None}
    changes = _git(Path(root), "status", "--porcelain", "--", ".", *NOT_CODE)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def short_commit(git: Mapping[str, Any]) -> str:
    """What :func:`git_state` gave, for a reader: ``0123456789 and changes``."""
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
    """Device, threads and instructions of this process; fairseq uses a GPU unless ``cpu``."""
    on_gpu = torch.cuda.is_available() and not cpu
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        # a preloaded library makes MKL take this CPU for Intel's: docs/troubleshooting.md
        "mkl_as_on_intel": hasattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true"),
    }
