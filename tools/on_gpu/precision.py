#!/usr/bin/env python3
"""Train every norm by fairseq-train in low precision: half of the updates, then resume.

    python tools/on_gpu/precision.py --data TOY/bin --out DIR [--device cpu] [--quick]

Each norm and flag (--fp16, --bf16, --amp, --memory-efficient-fp16) is 30 updates of a small
Transformer on the toy corpus, with the norm at every site. A row of DIR/precision.jsonl says how
each ended. A pair that has passed with the same code is not repeated. On a CPU fairseq knows --amp
and --memory-efficient-fp16 only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--fp16", "--bf16", "--amp", "--memory-efficient-fp16")
ON_CPU = ("--amp", "--memory-efficient-fp16")
UPDATES = 30
NAMES = "from norm_plugin.norms import NORM_TYPES; print(*NORM_TYPES)"
QUICK = 1  # number of norms
MODEL = """
--arch norm_transformer_multi30k_tiny --encoder-layers 2 --decoder-layers 2 --max-tokens 512
--task translation --optimizer adam --lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 4
--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1 --seed 3
--log-format json --log-interval 1 --num-workers 0 --fp16-init-scale 4 --norm-placement pre
--no-epoch-checkpoints --disable-validation
"""


def train(norm: str, flag: str, updates: int, folder: Path, args: argparse.Namespace) -> str:
    """The output of fairseq-train until ``updates``; raises ValueError with its last line."""
    cpu = ["--cpu"] if args.device == "cpu" else []
    command = [
        sys.executable,
        "-m",
        "fairseq_cli.train",
        str(args.data),
        *MODEL.split(),
        *cpu,
        flag,
    ]
    command += ["--user-dir", str(ROOT / "norm_plugin"), "--save-dir", str(folder)]
    command += ["--norm-type", norm, "--norm-type-decoder", norm, "--max-update", str(updates)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ValueError(f"{updates} updates: status {done.returncode}: {lines[-1][:300]}")
    return done.stdout + done.stderr


def losses(output: str) -> dict[int, float]:
    """The loss of every update, by their number."""
    records = [line.partition("| train_inner | ")[2] for line in output.splitlines()]
    found = [json.loads(record) for record in records if record]
    return {int(one["num_updates"]): float(one["loss"]) for one in found}


def check(first: dict[int, float], second: dict[int, float]) -> None:
    """Raise ValueError unless the second half goes on where the first one ended, and learns."""
    if max(first, default=0) != UPDATES // 2 or max(second, default=0) != UPDATES:
        raise ValueError(f"updates {sorted(first)} and {sorted(second)} are not all of {UPDATES}")
    if min(second) != UPDATES // 2 + 1:
        raise ValueError(f"resuming began with update {min(second)}, not {UPDATES // 2 + 1}")
    bad = [update for update, loss in {**first, **second}.items() if not math.isfinite(loss)]
    if bad:
        raise ValueError(f"the loss is not finite in updates {bad}")
    if second[UPDATES] >= first[1]:
        raise ValueError(f"the loss went from {first[1]} to {second[UPDATES]}")


def run_pair(norm: str, flag: str, args: argparse.Namespace) -> dict[str, Any]:
    """The row of one norm and flag."""
    folder = args.out / "precision" / f"{norm}{flag}"
    start = time.monotonic()
    row: dict[str, Any] = {"norm": norm, "flag": flag, "device": args.device, "code": args.code}
    for old in folder.glob("*.pt"):  # of a run that was cut off
        old.unlink()
    try:
        first = losses(train(norm, flag, UPDATES // 2, folder, args))
        second = losses(train(norm, flag, UPDATES, folder, args))
        check(first, second)
        row.update(status="passed", first=first[1], last=second[UPDATES], error="")
    except ValueError as error:
        row.update(status="failed", first=None, last=None, error=str(error))
    for old in folder.glob("*.pt"):
        old.unlink()
    return {**row, "seconds": round(time.monotonic() - start, 1)}


def done_before(path: Path, code: str) -> set[tuple[str, str, str]]:
    """Norm, flag and device of the rows of ``path`` that passed with this code."""
    if not path.exists():
        return set()
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.endswith("}"):  # a row that was cut off is none
            rows.append(json.loads(line))
    good = [row for row in rows if row["status"] == "passed" and row["code"] == code]
    return {(row["norm"], row["flag"], row["device"]) for row in good}


def main(argv: list[str] | None = None) -> int:
    """The command line; status 1 if a pair failed."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="binarized toy corpus"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--code", default="", help="its digest; its pairs are not repeated")
    parser.add_argument("--quick", action="store_true", help="one norm")
    args = parser.parse_args(argv)
    names = subprocess.run(
        [sys.executable, "-c", NAMES], check=True, capture_output=True, text=True
    )
    norms = names.stdout.split()[: QUICK if args.quick else None]
    path = args.out / "precision.jsonl"
    done = done_before(path, args.code)
    pairs = list(product(norms, ON_CPU if args.device == "cpu" else FLAGS))
    left = [pair for pair in pairs if (*pair, args.device) not in done]
    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool, open(path, "a", encoding="utf-8") as stream:
        if stream.tell() and not path.read_text(encoding="utf-8").endswith("\n"):
            stream.write("\n")
        for future in as_completed([pool.submit(run_pair, *pair, args) for pair in left]):
            row = future.result()
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            failed += row["status"] == "failed"
            print(f"{row['norm']} {row['flag']}: {row['status']} {row['error']}", flush=True)
    print(f"{len(pairs)} pairs, {failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
