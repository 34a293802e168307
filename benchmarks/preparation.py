#!/usr/bin/env python3
"""Measure the preparation of WMT14: pairs/s of tokenizing, BPE learning and BPE applying.

The text is the real newstest2014 (English and German), repeated, with made-up compounds of its own
words, so that the vocabulary grows like that of real text: 0.25 new words per line make 2.2 million
of them in 4.5 million pairs. Appends one row per size to benchmarks/results/preparation.csv.

The projection assumes that the time of tokenizing and applying grows with the pairs and falls with
the cores, and that the time of counting and learning, which use one core, grows with the pairs.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "data-prep"))

import wmt14  # noqa: E402
from norm_plugin.io.command_line import at_least  # noqa: E402
from prep.files import read_raw, write_lines  # noqa: E402
from prep.folder import tool_versions  # noqa: E402
from prep.pairs import (  # noqa: E402
    learn_subwords,
    plain_files,
    read_side,
    write_pieces,
    write_words,
)
from prep.stages import make_parser  # noqa: E402

WMT14_PAIRS = 4_500_000
TARGET_CORES = 8
STEPS = ("tokenize", "learn", "apply")


def repeated(lines: list[str], count: int, new_words: float, seed: int) -> Iterator[str]:
    """Yield `count` lines by repeating `lines`, with `new_words` compounds per line."""
    draw = random.Random(seed)
    vocabulary = [word for line in lines for word in line.split() if word.isalpha()]
    for number in range(count):
        line = lines[number % len(lines)]
        if draw.random() < new_words:
            line = f"{line} {draw.choice(vocabulary)}{draw.choice(vocabulary).lower()}"
        yield line


def write_raw(raw: Path, pairs: int, new_words: float, folder: Path) -> dict[str, Path]:
    """Write the test set of WMT14, repeated to `pairs` pairs; return the file of each side."""
    paths = {}
    for seed, language in enumerate(wmt14.LANGUAGES):
        name = f"train.{language}"
        archived = read_raw(raw, wmt14.files("test", language), folder)
        lines = list(read_side(wmt14.CORPUS, archived, "test", language))
        paths[name] = folder / name
        write_lines(paths[name], repeated(lines, pairs, new_words, seed))
    return paths


def measure(raw: Path, pairs: int, args: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of each step for a corpus of `pairs` pairs."""
    corpus = replace(wmt14.CORPUS, files=plain_files({"train": "train"}))
    argv = ["--out", "out", "--merges", str(args.merges), "--workers", str(args.workers)]
    options = corpus.parse(make_parser(None), argv)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        paths = write_raw(raw, pairs, args.new_words, work)
        times = [time.perf_counter()]
        write_words(corpus, paths, work, "train", options)
        times.append(time.perf_counter())
        models = learn_subwords(corpus, work, options)
        times.append(time.perf_counter())
        write_pieces(corpus, work, "train", models, options)
        times.append(time.perf_counter())
    return {step: end - start for step, start, end in zip(STEPS, times, times[1:])}


def projection(seconds: dict[str, float], pairs: int, workers: int, cores: int) -> float:
    """Return the minutes for the whole of WMT14 on `cores` cores."""
    parallel = (seconds["tokenize"] + seconds["apply"]) * workers / cores
    return (parallel + seconds["learn"]) * WMT14_PAIRS / pairs / 60


def row_of(pairs: int, seconds: dict[str, float], args: argparse.Namespace) -> dict[str, object]:
    """Return a row of the results, and print it."""
    # the peak memory of this process, and the largest peak of its ended workers
    main_mib, worker_mib = (
        resource.getrusage(kind).ru_maxrss / 1024
        for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    minutes = {
        cores: projection(seconds, pairs, args.workers, cores)
        for cores in (args.workers, TARGET_CORES)
    }
    speeds = ", ".join(f"{step} {pairs / seconds[step]:,.0f}" for step in STEPS)
    print(f"{pairs:,} pairs on {args.workers} cores, pairs/s: {speeds}")
    print(f"  memory: {main_mib:,.0f} MiB and at most {worker_mib:,.0f} MiB per worker")
    for cores, value in minutes.items():
        print(f"  {WMT14_PAIRS:,} pairs on {cores} cores: about {value:,.0f} minutes")
    return {
        "pairs": pairs,
        "workers": args.workers,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "merges": args.merges,
        "new_words": args.new_words,
        **{f"{step}_s": round(seconds[step], 2) for step in STEPS},
        "main_mib": round(main_mib),
        "worker_mib": round(worker_mib),
        "wmt14_8_cores_min": round(minutes[TARGET_CORES], 1),
        **tool_versions(),
    }


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; `argv` is sys.argv[1:]."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, shown = parser.add_argument, "default: %(default)s"
    raw = Path(os.environ.get("NORM_DATA_DIR", "")) / "wmt14"
    help_of_raw = "folder with test-full.tgz (default: NORM_DATA_DIR/wmt14)"
    add("--raw", type=Path, default=raw, metavar="DIR", help=help_of_raw)
    sizes = [75_000, 150_000, 300_000]
    add("--pairs", type=at_least(1), nargs="+", default=sizes, metavar="N", help=shown)
    add("--merges", type=at_least(1), default=40_000, help=shown)
    add("--new-words", type=float, default=0.25, metavar="P", help=f"new words per line ({shown})")
    cores = len(os.sched_getaffinity(0))
    add("--workers", type=at_least(1), default=cores, help="default: one per core")
    output = ROOT / "benchmarks" / "results" / "preparation.csv"
    help_of_output = "append rows to this file (default: benchmarks/results/preparation.csv)"
    add("--output", type=Path, default=output, metavar="FILE", help=help_of_output)
    add("--no-csv", action="store_true", help="print only")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure every size and print the projections."""
    args = parse_args(argv)
    rows = [row_of(pairs, measure(args.raw, pairs, args), args) for pairs in args.pairs]
    if not args.no_csv:
        # Only after the measurements: this imports torch, whose memory would count too
        from measuring.records import append, commit

        origin = {"date": date.today().isoformat(), "commit": commit()}
        append(args.output, [{**origin, **row} for row in rows])


if __name__ == "__main__":
    main()
