"""The result of a finished run, from its files.

It has the scores, settings, code, versions, data, size and speed; what is unknown is null. It is
written to ``<experiment>/<norm>-seed<N>.json`` in ``--out``, with the translations and the
statistics over training beside it; see results.py and kept.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import (
    CommandError,
    read_json,
    write_text,
)
from norm_plugin.experiments.checkpoint_facts import model_facts, training_facts
from norm_plugin.experiments.curves import curves_of_log
from norm_plugin.experiments.kept import keep_files
from norm_plugin.experiments.metrics import METRICS, find_metric
from norm_plugin.experiments.provenance import git_state, machine, plain_settings, versions
from norm_plugin.experiments.results import (
    SCHEMA,
    Result,
    metric_of,
    result_text,
    summary,
    write_result,
)
from norm_plugin.experiments.stamps import read_stamp
from norm_plugin.models.record_settings import FILE as RECORD_FILE


def collect_result(args: argparse.Namespace) -> Result:
    """The result of a finished run, from its files; CommandError if they do not agree."""
    manifest = read_json(args.data / "manifest.json")
    last, decoded = load_checkpoint(args.last), load_checkpoint(args.checkpoint)
    cfg = last.get("cfg") or {}
    _check_seed(args, cfg)
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
        "training": {**training_facts(last), "peak_memory": _peak_memory(args.memory)},
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
        "machine": machine(cpu=bool((cfg.get("common") or {}).get("cpu"))),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _peak_memory(file: Path | None) -> int | None:
    """Bytes; None where it was not measured, as in a job of several nodes."""
    text = None if file is None else read_stamp(file)
    return None if text is None else int(text)


def _check_seed(args: argparse.Namespace, cfg: dict[str, Any]) -> None:
    seed = (cfg.get("common") or {}).get("seed")
    if seed is not None and seed != args.seed:
        raise CommandError(f"--seed {args.seed}, but {args.last} was trained with seed {seed}")


def training_pairs(manifest: dict[str, Any]) -> int | None:
    """The number of examples that a prepared corpus trains on; None where it is not written.

    A running text, whose unit is a word or a character, has none.
    """
    if (manifest.get("settings") or {}).get("unit"):
        return None
    counts = manifest.get("counts") or {}
    text = counts.get("bpe") or counts.get("tok") or {}
    pairs: int | None = (text.get(f"train.{manifest.get('source')}") or {}).get("lines")
    return pairs


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="norm-plugin result",
        description="Write the result of a finished run to OUT/<experiment>/<norm>-seed<N>.json.",
    )
    parser.add_argument("--experiment", required=True, help="name of the experiment")
    parser.add_argument("--norm", required=True, help="the norm that the run was started with")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--differs",
        type=json.loads,
        default={},
        metavar="JSON",
        help="the settings that differ from the recipe",
    )
    parser.add_argument(
        "--sources",
        type=json.loads,
        default={},
        metavar="JSON",
        help="the digests of the files of the user dir that the training rests on",
    )
    parser.add_argument(
        "--metric", choices=list(METRICS), default="bleu", help="default: %(default)s"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="FILE",
        help="the checkpoint that was evaluated: for BLEU, the average",
    )
    parser.add_argument(
        "--last",
        type=Path,
        required=True,
        metavar="FILE",
        help="the run's last checkpoint, for settings, time and speed",
    )
    parser.add_argument(
        "--log",
        "--generate-log",
        type=Path,
        required=True,
        metavar="FILE",
        help="the output of the evaluation: for BLEU, of fairseq-generate --remove-bpe",
    )
    parser.add_argument(
        "--train-log",
        type=Path,
        metavar="FILE",
        help="what fairseq-train printed; its losses become part of the result",
    )
    parser.add_argument(
        "--memory",
        type=Path,
        metavar="FILE",
        help="holds the peak memory of the training in bytes; it need not exist",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help=f"what --norm-record wrote (default: {RECORD_FILE} beside --last, if it is there)",
    )
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
    args = parser.parse_args(argv)
    for name in ("experiment", "norm"):
        if "/" in getattr(args, name) or getattr(args, name).startswith("."):
            parser.error(f"--{name} becomes a file name: it must not contain '/' or start with '.'")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; prints a short summary."""
    args = _parse(argv)
    import_user_dir(args.user_dir)
    result = collect_result(args)
    path = write_result(result, args.out)
    record = args.last.with_name(RECORD_FILE) if args.record is None else args.record
    kept = keep_files(
        path,
        metric_of(result).texts(args.log, args.data),
        record if args.record is not None or record.exists() else None,
        args.checkpoint,
    )
    write_text(path, result_text({**result, "kept": kept}))
    print(f"{summary(result)}\n  written to {path}")
    return 0
