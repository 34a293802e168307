#!/usr/bin/env python3
"""Run an example for several norms and seeds, and keep the scores for docs/examples.md.

    python tools/example_runs.py mnist --data DIR --norms layernorm adanorm --seeds 1 2 3

Writes results/examples/EXAMPLE/NORM-seedN.json for each run. A run that has its file is skipped, so
the same command continues a series that was stopped. All runs of an example have the same data and
flags: other ones need another --out. `python tools/docs.py` makes the tables.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from markdown_table import markdown
from norm_plugin.commands.command_line import (
    CommandError,
    at_least,
    read_json,
    run_command,
    write_text,
)
from norm_plugin.experiments.comparable import half_interval
from norm_plugin.experiments.provenance import git_state, machine, versions
from norm_plugin.experiments.results import result_name
from norm_plugin.norms import NORM_TYPES

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("results") / "examples"
PUBLISHED: dict[str, tuple[str, dict[str, str]]] = {
    "mnist": (
        "test accuracy",
        {
            **{"none": "99.14", "layernorm": "99.13", "layernorm-simple": "99.09"},
            **{"detachnorm": "99.10", "detachnorm-mean": "99.25", "detachnorm-std": "99.10"},
            **{"adanorm": "99.35"},
        },
    ),
    "parsing": (
        "test UAS",
        {
            **{"none": "88.31", "layernorm": "89.12", "layernorm-simple": "89.19"},
            **{"detachnorm": "89.79", "detachnorm-mean": "89.45", "detachnorm-std": "89.80"},
            **{"adanorm": "89.23"},
        },
    ),
}
"""The score of each example, and what the AdaNorm paper (Tables 1 to 4) reports of it."""
SHARED = ("data", "command")
"""What all runs of an example have in common; the command has NORM and SEED for those of a run."""
Run = dict[str, Any]


def example_table(name: str, root: Path) -> str:
    """Markdown: a row for each norm of example ``name`` that has runs, and where they come from."""
    if name not in PUBLISHED:
        raise CommandError(f"no example {name!r} with a table; there are {', '.join(PUBLISHED)}")
    score, published = PUBLISHED[name]
    runs = read_runs(root / RESULTS / name)
    if not runs:
        return f"Not run: `python tools/example_runs.py {name} --data DIR` does it."
    rows = [("norm", "seeds", score, "95 % interval", "published, other data")]
    for norm, found in groupby(runs, key=lambda run: run["norm"]):
        ours = list(found)
        scores = [run["scores"][score] for run in ours]
        interval = f"± {half_interval(scores):.2f}" if len(scores) > 1 else "one seed"
        seeds = ", ".join(str(run["seed"]) for run in ours)
        mean = f"{statistics.mean(scores):.2f}"
        rows.append((f"`{norm}`", seeds, mean, interval, published.get(norm, "—")))
    return "\n".join([markdown(rows), "", *_origins(runs)])


def read_runs(folder: Path) -> list[Run]:
    """The results in ``folder``, in the order of the registry's norms and of their seeds.

    Raises CommandError for a file of another norm or seed than its name says, and where two differ
    in data or command, since a table averages them.
    """
    runs = {path: read_json(path) for path in sorted(folder.glob("*.json"))}
    for path, run in runs.items():
        first = next(iter(runs))
        if run["norm"] not in NORM_TYPES or path.name != result_name(run["norm"], run["seed"]):
            raise CommandError(f"{path} holds {run['norm']}, seed {run['seed']}; remove it")
        for key in SHARED:
            if run[key] != runs[first][key]:
                raise CommandError(
                    f"{path} has another {key} than {first.name} ({run[key]}, not "
                    f"{runs[first][key]}): remove one of them, or move it to another folder"
                )
    order = list(NORM_TYPES)
    return sorted(runs.values(), key=lambda run: (order.index(run["norm"]), run["seed"]))


def _origins(runs: Iterable[Run]) -> list[str]:
    """A line for each command, machine, versions and code that the runs come from."""
    lines = [
        f"`{run['command']}`, torch {run['versions']['torch']}, Python {run['versions']['python']},"
        f" {_threads(run['machine']['threads'])} of a CPU, commit "
        f"{(run['git']['commit'] or 'unknown')[:7]}{'+' if run['git']['dirty'] else ''}, "
        f"data {run['data'][:12]}."
        for run in runs
    ]
    return list(dict.fromkeys(lines))


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def flags_of(args: argparse.Namespace) -> list[str]:
    """The flags of the example that all runs share."""
    return ["--epochs", str(args.epochs)] if args.epochs is not None else []


def shared_by_all(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """:data:`SHARED` of the runs to come.

    Raises CommandError where the runs in ``folder`` have others, or the data cannot be read.
    """
    words = " ".join(["--data DIR --norm-type NORM --seed SEED", *flags_of(args)])
    shared = {
        "command": f"python examples/{args.example}.py {words}",
        "data": checksum(args.data),
    }
    for run in read_runs(folder)[:1]:
        for key in SHARED:
            if run[key] != shared[key]:
                raise CommandError(
                    f"the runs in {folder} have another {key} ({run[key]}, not {shared[key]}): "
                    "remove them, or choose another --out"
                )
    return shared


def run_example(args: argparse.Namespace, norm: str, seed: int, shared: dict[str, str]) -> Run:
    """One run, in this process. Raises CommandError where it diverges, or data is no data."""
    example = importlib.import_module(args.example)
    words = ["--norm-type", norm, "--seed", str(seed), *flags_of(args)]
    start = time.perf_counter()
    try:
        scores = example.main(["--data", str(args.data), *words])
    except ValueError as error:
        raise CommandError(f"{args.example}, {norm}, seed {seed}: {error}") from error
    return {
        "example": args.example,
        "norm": norm,
        "seed": seed,
        "scores": scores,
        **shared,
        "seconds": round(time.perf_counter() - start, 1),
        "git": git_state(Path(__file__).parent),
        "versions": {name: versions()[name] for name in ("norm_plugin", "python", "torch")},
        "machine": machine(cpu=True),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def checksum(folder: Path) -> str:
    """SHA-256 of the names and the contents of the files in ``folder``.

    Raises CommandError where there is no such folder.
    """
    if not folder.is_dir():
        raise CommandError(f"--data {folder} is no folder")
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("example", choices=list(PUBLISHED))
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--norms", nargs="+", choices=NORM_TYPES, metavar="NORM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N")
    parser.add_argument(
        "--epochs", type=at_least(1), metavar="N", help="default: those of the example"
    )
    parser.add_argument("--threads", type=at_least(1), default=1, metavar="N", help="default: 1")
    parser.add_argument("--out", type=Path, default=ROOT / RESULTS, metavar="DIR")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    sys.path.insert(0, str(ROOT / "examples"))
    folder = args.out / args.example
    folder.mkdir(parents=True, exist_ok=True)
    shared = shared_by_all(args, folder)
    for seed in args.seeds:  # all norms have as many seeds, wherever it is stopped
        for norm in args.norms or PUBLISHED[args.example][1]:
            path = folder / result_name(norm, seed)
            if not path.exists():
                result = run_example(args, norm, seed, shared)
                write_text(path, json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run_command(main)
