"""The result of a finished run; ``norm-plugin result`` writes it.

``<experiment>/<norm>-seed<N>.json`` has the scores, settings, commit, versions, data, size and
speed of a run; unknown values are null.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from norm_lab.config.spec import result_name
from norm_lab.engine.state import read_stamp, utc_date
from norm_lab.engine.training_log import curves_of_log
from norm_lab.metrics import METRICS, find_metric, score_lines
from norm_lab.results.artifacts import write_artifacts
from norm_lab.results.provenance import git_state, machine, plain_settings, versions
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json, write_text

SCHEMA = 3
Result = dict[str, Any]


def result_path(result: Result, out: Path) -> Path:
    """Return the file of a result under ``out``; create its folder."""
    path = out / result["experiment"] / result_name(result["norm"], result["seed"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot create {path.parent}: {error.strerror}") from error
    return path


def write_result(result: Result, out: Path) -> Path:
    """Write a result under ``out``, atomically, and return its path."""
    path = result_path(result, out)
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, f"{text}\n")
    return path


def result_command(argv: Sequence[str]) -> int:
    """Run the command ``result``, and print a short summary."""
    from norm_lab.results.spectrum import spectra_of
    from norm_plugin.checkpoints.files import load_checkpoint  # imports torch
    from norm_plugin.io.user_dirs import import_user_dir
    from norm_plugin.models.plan import RECORDS

    args = _result_parser(RECORDS).parse_args(argv)
    import_user_dir(args.user_dir)
    decoded = load_checkpoint(args.checkpoint)
    result, metric = collect_result(args, decoded), find_metric(args.metric)
    path = result_path(result, args.out)
    record = args.last.with_name(RECORDS) if args.record is None else args.record
    has_record = args.record is not None or record.exists()
    translations = metric.item_outputs(args.log, args.data)
    # the artifacts first, so that a result always has all of them
    spectra = spectra_of(decoded, args.checkpoint)
    entries = write_artifacts(path, translations, record if has_record else None, spectra)
    write_result({**result, "kept": entries}, args.out)
    training = result["training"]
    print(
        f"{args.experiment} {args.norm} seed {args.seed} ({args.split})",
        *score_lines(result["scores"], metric.digits),
        f"  model      {result['model']['parameters']:,} parameters",
        f"  training   {training['updates']} updates in {training['seconds']} s, "
        f"{training['updates_per_second']} updates/s",
        f"  written to {path}",
        sep="\n",
    )
    return 0


def _result_parser(records: str) -> argparse.ArgumentParser:
    from norm_plugin.io.user_dirs import add_user_dir

    parser = argparse.ArgumentParser(
        prog="norm-plugin result",
        description="Write the result of a finished run to OUT/<experiment>/<norm>-seed<N>.json.",
    )
    parser.add_argument("--experiment", required=True, help="name of the experiment")
    parser.add_argument("--norm", required=True, help="the label of the run")
    parser.add_argument("--seed", type=int, required=True)
    for flag, text in (
        ("--differs", "the settings that differ from the experiment's"),
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
        ("--record", False, f"the file of --norm-record (default: {records} beside --last)"),
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
        default=Path("work") / "results",  # not results/, which is published and tracked by git
        metavar="DIR",
        help="default: %(default)s",
    )
    add_user_dir(parser)
    return parser


def collect_result(args: argparse.Namespace, decoded: dict[str, Any]) -> Result:
    """Return the result of a finished run, from its files; CommandError if they disagree.

    ``decoded``: the content of ``args.checkpoint``.
    """
    from norm_plugin.checkpoints.files import load_checkpoint  # imports torch

    manifest = read_json(args.data / "manifest.json")
    last = load_checkpoint(args.last)
    cfg = last.get("cfg") or {}
    common = cfg.get("common") or {}
    if common.get("seed") not in (None, args.seed):
        raise CommandError(
            f"--seed is {args.seed}, but {args.last} was trained with seed {common['seed']}"
        )
    memory = None if args.memory is None else read_stamp(args.memory)
    model = describe_model(args.checkpoint, args.data / "bin", decoded)
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
        "date": utc_date(time.time()),
    }


def describe_training(state: dict[str, Any]) -> dict[str, Any]:
    """Return the length, time and speed of a training, from its last checkpoint; None if unknown.

    ``seconds`` is the wall time over all resumes, including validation and saving. The speeds are
    those of the training steps only (``train_wall``): forward, backward and optimizer. fairseq
    resets its meters when a run is resumed at the end of an epoch, so the speeds are means over the
    ``measured_updates`` since then. ``tokens`` are target tokens, as fairseq counts them.
    """
    from norm_plugin.checkpoints.files import num_updates

    extra = state.get("extra_state") or {}
    epoch = (extra.get("train_iterator") or {}).get("epoch")
    checkpoint = (state.get("cfg") or {}).get("checkpoint") or {}
    # a meter is stored as (priority, name, class, state), under its group
    default = (extra.get("metrics") or {}).get("default", [])
    meters = {name: meter for _, name, _, meter in default}
    wall, batch = meters.get("train_wall", {}), meters.get("wpb", {})
    sums = (wall.get("sum"), batch.get("count"), batch.get("sum"))
    seconds, updates, tokens = (float(value or 0) for value in sums)
    measured = bool(seconds and updates and tokens)
    return {
        "updates": num_updates(state),
        "epochs": None if epoch is None else epoch - 1,  # fairseq stores the next epoch to finish
        "seconds": _rounded(extra.get("previous_training_time"), 1),
        "updates_per_second": _rounded(updates / seconds, 3) if measured else None,
        "tokens_per_second": _rounded(tokens / seconds, 1) if measured else None,
        "measured_updates": int(updates) if measured else None,
        "best_valid": {
            "metric": checkpoint.get("best_checkpoint_metric"),
            "value": _rounded(extra.get("best"), 4),
        },
    }


def _rounded(value: Any, digits: int) -> float | None:
    """Return a rounded number; accepts a tensor; None if not finite, as JSON has no NaN."""
    finite = value is not None and math.isfinite(value)
    return round(float(value), digits) if finite else None


def describe_model(
    checkpoint: Path, binarized: Path, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the size and the norms of the model in a checkpoint.

    Args:
        binarized: the folder of the binarized data, for the dictionaries.
        state: the content of the checkpoint if it was read before.

    Returns:
        ``parameters``, the number of trainable parameters, with tied ones counted once;
        ``norm_parameters``, the number of those in norms; and ``sites``, the norm of every site
        (None for a model of fairseq's own).

    Raises:
        CommandError: model and data do not fit together.
    """
    from norm_plugin.checkpoints.building import build_model  # imports fairseq
    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.settle import settle
    from norm_plugin.models.sites import sides_of

    model, cfg, _ = build_model(checkpoint, binarized, state)
    ours = isinstance(model, NormModel)
    plan = model.cfg.plan if ours else settle(cfg.model, sides_of(model))
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
    """Return the number of training examples of a corpus; None for running text or if unknown."""
    if (manifest.get("settings") or {}).get("unit"):
        return None
    counts = manifest.get("counts") or {}
    text = counts.get("bpe") or counts.get("tok") or {}
    pairs: int | None = (text.get(f"train.{manifest.get('source')}") or {}).get("lines")
    return pairs
