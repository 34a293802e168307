#!/usr/bin/env python3
"""Run an example for several norms and seeds, and keep the scores for papers/examples.md.

    python -m papers.example_runs mnist --data DIR --norms layernorm adanorm --seeds 1 2 3

Writes papers/data/examples/EXAMPLE/NORM-seedN.json for each run. A run that has its file is
skipped, so the same command continues a series that was stopped. Other data needs another --out.
`python -m papers` makes the tables.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from norm_lab.paths import ROOT
from norm_lab.report.text import markdown
from norm_lab.results.provenance import git_state, machine, versions
from norm_lab.results.result import result_name
from norm_lab.study.significance import Comparison, compare, half_interval, holm, verdict
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.io.files import read_json, write_json
from norm_plugin.norms import NORM_TYPES
from papers.scores import published_scores

RESULTS = Path("papers") / "data" / "examples"
SCORES = {"mnist": "test accuracy", "parsing": "test UAS"}
"""The score of each example; scores.py has the values of Xu et al. 2019, Tables 1 to 4."""
PUBLISHED = {"mnist": "published", "parsing": "published, other data"}
"""The title of the column with the paper's scores."""
COMPARED = {
    "mnist": {
        "Table 1": [("layernorm", "none"), ("layernorm-simple", "layernorm")],
        "Table 2": [("detachnorm", "none")],
        "Tables 1 and 2": [("detachnorm", "layernorm-simple")],
        "Table 3": [
            ("detachnorm-mean", "layernorm-simple"),
            ("detachnorm-std", "layernorm-simple"),
        ],
        "Table 4": [("adanorm", "layernorm")],
    }
}
"""The declared comparisons of an example, by the table of Xu et al. 2019: norm and baseline."""
EQUAL = {"mnist": 0.1}
"""A difference counts as equal if its interval lies within this margin, in points."""
SHARED = ("data", "command")
"""What all runs of an example have in common; NORM and SEED stand for those of a run."""
Run = dict[str, Any]


def example_table(name: str, root: Path) -> str:
    """Return Markdown: one row per norm of example ``name`` that has runs, and their origin."""
    score, published = SCORES[name], published_scores(name)
    runs = read_runs(root / RESULTS / name)
    if not runs:
        return f"Not run: `python -m papers.example_runs {name} --data DIR` does it."
    table = pd.DataFrame(runs).assign(score=[run["scores"][score] for run in runs])
    rows = [
        {
            "norm": f"`{norm}`",
            "seeds": ", ".join(map(str, own["seed"])),
            score: f"{own['score'].mean():.2f}",
            "95 % interval": f"± {half_interval(own['score']):.2f}" if len(own) > 1 else "one seed",
            PUBLISHED[name]: published.get(str(norm), "—"),
        }
        for norm, own in table.groupby("norm", sort=False)
    ]
    return "\n".join([markdown(pd.DataFrame(rows)), "", *dict.fromkeys(map(_origin, runs))])


class Declared(NamedTuple):
    """A declared comparison of two norms; ``p`` is corrected by Holm's method over all of them."""

    table: str
    test: Comparison
    p: float


def scores_by_seed(name: str, root: Path) -> dict[str, dict[int, float]]:
    """Return the scores of example ``name`` by norm and seed."""
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    for run in read_runs(root / RESULTS / name):
        scores[run["norm"]][run["seed"]] = run["scores"][SCORES[name]]
    return scores


def declared_comparisons(name: str, root: Path) -> dict[tuple[str, str], Declared]:
    """Return the declared comparisons of an example by norm and baseline; without runs, none."""
    scores = scores_by_seed(name, root)
    pairs = [(table, *pair) for table, pairs in COMPARED.get(name, {}).items() for pair in pairs]
    if not scores or not pairs:
        return {}
    tests = [compare(scores[norm], scores[baseline]) for _, norm, baseline in pairs]
    corrected = holm([test.p for test in tests])
    return {
        (norm, baseline): Declared(table, test, p)
        for (table, norm, baseline), test, p in zip(pairs, tests, corrected)
    }


def comparisons_table(name: str, root: Path) -> str:
    """Return Markdown: the declared comparisons of an example, beside the differences of the paper.

    Each is a paired t test over all seeds.
    """
    published = {norm: float(score) for norm, score in published_scores(name).items()}
    rows = []
    for (norm, baseline), (table, test, p) in declared_comparisons(name, root).items():
        low, high = test.interval
        better = verdict(test.mean, p, higher_is_better=True)
        rows.append(
            {
                "comparison": f"`{norm}` minus `{baseline}`",
                "of": table,
                "paper": f"{published[norm] - published[baseline]:+.2f}",
                "here, points": f"{test.mean:+.3f}",
                "95 % interval": f"{low:+.3f} to {high:+.3f}",
                "n": test.n,
                "p (Holm)": "<0.0001" if p < 0.0001 else f"{p:.4f}",
                "verdict": "equal" if max(-low, high) < EQUAL[name] else str(better),
            }
        )
    return markdown(pd.DataFrame(rows)) if rows else "Not run."


def read_runs(folder: Path) -> list[Run]:
    """Return the results in ``folder``, in the order of the registry's norms and of their seeds.

    Raises:
        CommandError: two runs differ in data or command; the table averages over runs.
    """
    runs = [read_json(path) for path in folder.glob("*.json")]
    runs.sort(key=lambda run: (list(NORM_TYPES).index(run["norm"]), run["seed"]))
    for run in runs:
        check_shared(run, runs[0], folder)
    return runs


def check_shared(run: Run, first: Run, folder: Path) -> None:
    """Raise CommandError if a run differs from the first one in ``folder``."""
    for key in SHARED:
        if run[key] != first[key]:
            raise CommandError(
                f"the runs in {folder} have another {key}: {first[key]} of {first['norm']}, seed "
                f"{first['seed']}, and {run[key]}; remove the wrong ones, or choose another --out"
            )


def begin_series(folder: Path, command: str, data: Path) -> Run:
    """Make the folder of a series of runs, and return what all of its runs must have in common."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = {"command": command, "data": checksum(data)}
    for run in read_runs(folder):
        check_shared(shared, run, folder)
    return shared


def _origin(run: Run) -> str:
    """Return the command, machine, versions and code that a run comes from."""
    threads, git, versions = run["machine"]["threads"], run["git"], run["versions"]
    commit = (git["commit"] or "unknown")[:7] + "+" * bool(git["dirty"])
    return (
        f"`{run['command']}`, torch {versions['torch']}, Python {versions['python']}, {threads} "
        f"thread{'s' * (threads > 1)} of a CPU, commit {commit}, data {run['data'][:12]}."
    )


def run_example(args: argparse.Namespace, norm: str, seed: int, shared: Run) -> Run:
    """Return one run, in this process; ValueError if it diverges or the data is invalid."""
    example = importlib.import_module(args.example)
    start = time.perf_counter()
    scores = example.main(["--data", str(args.data), "--norm-type", norm, "--seed", str(seed)])
    return {
        "example": args.example,
        "norm": norm,
        "seed": seed,
        "scores": scores,
        **shared,
        "seconds": round(time.perf_counter() - start, 1),
        **made_here(),
    }


def made_here() -> Run:
    """Return the code, versions, machine and date of a run that was made now."""
    return {
        "git": git_state(Path(__file__).parent),
        "versions": {name: versions()[name] for name in ("norm_plugin", "python", "torch")},
        "machine": machine(cpu=True),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def checksum(folder: Path) -> str:
    """Return the SHA-256 of the names and the contents of the files in ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("example", choices=list(SCORES))
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--norms", nargs="+", choices=NORM_TYPES, metavar="NORM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N")
    parser.add_argument("--out", type=Path, default=ROOT / RESULTS, metavar="DIR")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "examples"))
    folder = args.out / args.example
    command = f"python examples/{args.example}.py --data DIR --norm-type NORM --seed SEED"
    shared = begin_series(folder, command, args.data)
    # seed by seed, so that all norms have equally many seeds whenever it is stopped
    for seed, norm in product(args.seeds, args.norms or published_scores(args.example)):
        path = folder / result_name(norm, seed)
        if not path.exists():
            write_json(path, run_example(args, norm, seed, shared))
    return 0


if __name__ == "__main__":
    run_command(main)
