"""The result of a finished run: ``<experiment>/<norm>-seed<N>.json`` in ``--out``.

It holds the scores with the settings, seed, code, versions, data, size and speed. What is unknown
is null. The translations and the statistics over training are kept beside it; see kept.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.checkpoints.user_dirs import add_user_dir, import_user_dir
from norm_plugin.commands.command_line import (
    CommandError,
    read_json,
    run_command,
    write_text,
)
from norm_plugin.experiments.checkpoint_facts import model_facts, training_facts
from norm_plugin.experiments.curves import read_curves as curves_of_log
from norm_plugin.experiments.kept import keep_files
from norm_plugin.experiments.metrics import METRICS, Metric, find_metric
from norm_plugin.experiments.provenance import git_state, machine, plain_settings, versions
from norm_plugin.experiments.stamps import read_stamp
from norm_plugin.models.record_settings import FILE as RECORD_FILE

SCHEMA = 3
Result = dict[str, Any]
RUN_KEY = ["experiment", "norm", "seed"]
"""The columns that name a run."""
WHOLE = ("differs",)
"""Values that stay a dictionary in one column: their keys have dots of their own."""


def result_name(norm: str, seed: int) -> str:
    """The file name of a result: ``powernorm-seed1.json``."""
    return f"{norm}-seed{seed}.json"


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


def metric_of(result: Result) -> Metric:
    """The metric of a result's scores."""
    return find_metric(result["metric"])


def headline(result: Result) -> float:
    """The score that stands for a run."""
    score: float = result["scores"][metric_of(result).headline]["score"]
    return score


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


def write_result(result: Result, out: Path) -> Path:
    """Write a result under ``out``, atomically, and return its path."""
    path = out / result["experiment"] / result_name(result["norm"], result["seed"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {path.parent}: {error.strerror}") from error
    write_text(path, result_text(result))
    return path


def result_text(result: Result) -> str:
    """The content of the file of a result."""
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def read_result_files(folder: Path) -> list[Result]:
    """The results of an experiment's folder, sorted by norm and seed.

    Raises CommandError where there is none, or a file is not a result of a known schema.
    """
    results = []
    for path in sorted(folder.glob("*.json")):
        result = read_result(path)
        if path.name != result_name(result["norm"], result["seed"]):
            raise CommandError(f"{path} holds {result['norm']}, seed {result['seed']}")
        results.append(result)
    if not results:
        there = "it holds no *.json" if folder.is_dir() else "there is no such folder"
        raise CommandError(
            f"no results in {folder}: {there}. A finished run writes <norm>-seed<N>.json there, "
            "or below the --results or --work folder that it was given"
        )
    return sorted(results, key=lambda result: (result["norm"], result["seed"]))


def read_result(path: Path) -> Result:
    """The result in a file; CommandError where it is none of a known schema."""
    result = _as_of_now(read_json(path))
    if result is None:
        raise CommandError(f"{path} is not a result of schema {SCHEMA}; write it again")
    return result


def _as_of_now(result: Any) -> Result | None:
    """A result of this schema, or of the one before, which only translation had; None for others.

    Schema 2 had the scores under ``bleu``.
    """
    if isinstance(result, dict) and result.get("schema") == 2:
        scores = {"schema": SCHEMA, "metric": "bleu", "scores": result.get("bleu")}
        result = {key: value for key, value in result.items() if key != "bleu"} | scores
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        return None
    return result if {"norm", "seed"} <= result.keys() else None


def read_results(*folders: Path) -> pd.DataFrame:
    """One row a finished run, by norm and seed: what its result holds, as columns.

    The value of a nested key has a dotted name: ``settings.optimization.lr``, ``data.checksum``,
    ``training.seconds``. A value that a run does not have is missing. These are added:

    - ``score``: the headline score of its ``metric``
    - ``valid_loss``, ``train_loss``: the least validation loss and the last training loss
    - ``placement``: of its norms
    - ``split_seed``: by which its corpus was split at random; missing for a corpus with a split
    - ``commit``, ``dirty``: of the code that scored it
    - ``folder``: where it was read

    Args:
        folders: of experiments, with a JSON file a run.

    Raises:
        CommandError: a folder without results, or a file that is none of a known schema.
    """
    rows = [
        {**_flat(result), "folder": folder}
        for folder in folders
        for result in read_result_files(folder)
    ]
    runs = pd.DataFrame(rows).rename(columns={"git.commit": "commit", "git.dirty": "dirty"})
    curves = read_curves(*folders)
    for column, subset, which in (("valid_loss", "valid", "min"), ("train_loss", "train", "last")):
        losses = curves[curves["subset"] == subset].groupby(RUN_KEY)["loss"].agg(which)
        runs[column] = pd.MultiIndex.from_frame(runs[RUN_KEY]).map(losses.to_dict())
    runs["score"] = [row[f"scores.{find_metric(row['metric']).headline}.score"] for row in rows]
    runs["placement"] = [placement_of(row) for row in rows]
    runs["split_seed"] = [row.get("data.settings.split_seed") for row in rows]
    return runs


def read_curves(*folders: Path) -> pd.DataFrame:
    """Losses over training: one row a run, subset and update.

    Returns:
        columns ``experiment``, ``norm``, ``seed``, ``subset`` (train or valid), ``epoch``,
        ``updates``, ``loss`` and ``nll_loss``, in bits.
    """
    rows = [
        {**{key: result[key] for key in RUN_KEY}, "subset": subset, **point}
        for folder in folders
        for result in read_result_files(folder)
        for subset, points in (result.get("curves") or {}).items()
        for point in points
    ]
    return pd.DataFrame(rows, columns=[*RUN_KEY, "subset", "epoch", "updates", "loss", "nll_loss"])


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names, without the curves."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and key not in WHOLE:
            flat.update(_flat(value, f"{prefix}{key}."))
        elif key != "curves":
            flat[f"{prefix}{key}"] = value
    return flat


def placement_of(run: Mapping[str, Any]) -> str:
    """The placement of a run, from its row; stock fairseq's models name it by a switch."""
    stock = "pre" if run.get("settings.model.encoder_normalize_before") else "post"
    everywhere = str(run.get("settings.model.norm_placement") or stock)
    encoder, decoder = (
        str(run.get(f"settings.model.norm_placement_{side}") or everywhere)
        for side in ("encoder", "decoder")
    )
    return encoder if encoder == decoder else f"encoder {encoder}, decoder {decoder}"


def score_lines(result: Result) -> list[str]:
    """A line for each score with its label and signature, and the notes on them."""
    metric = metric_of(result)
    scores = [
        f"  {metric.text(score['score']):>5}  {score['label']}{_signature(score)}"
        for score in result["scores"].values()
    ]
    return scores + [f"  note       {note}" for note in score_notes(result)]


def summary(result: Result) -> str:
    """A few lines for a person."""
    training, model = result["training"], result["model"]
    return "\n".join(
        (
            f"{result['experiment']} {result['norm']} seed {result['seed']} ({result['split']})",
            *score_lines(result),
            f"  model      {model['parameters']:,} parameters",
            f"  training   {training['updates']} updates in {training['seconds']} s, "
            f"{training['updates_per_second']} updates/s",
        )
    )


def score_notes(result: Result) -> list[str]:
    """Notes on the scores of a result, for instance that the log ends with a different score."""
    return [score["note"] for score in result["scores"].values() if "note" in score]


def _signature(score: dict[str, Any]) -> str:
    return f" ({score['signature']})" if "signature" in score else ""


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


if __name__ == "__main__":
    run_command(main)
