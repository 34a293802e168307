#!/usr/bin/env python3
"""Check, measure and train on a GPU, in one command.

    bash scripts/gpu.sh --minutes 60                       # an NVIDIA GPU
    bash scripts/gpu.sh --wheels DIR --raw DIR             # no network
    bash scripts/gpu.sh --device cpu --quick               # tries the command out without a GPU

Parts: install what is missing; build the C++ kernels; the tests that touch a device, in three
precisions; the same under compute-sanitizer; tests on two GPUs; fairseq-train with --fp16, --bf16,
--amp and --memory-efficient-fp16 for every norm; what layers and updates cost; Multi30k with
--preset paper, for which 41.02 BLEU is published, with more norms and seeds while there is time.

A part that fails or takes too long costs no other part. What is measured is on disk at any moment,
and the same command goes on after it was cut off: parts that have passed with the same code on the
same kind of device are not repeated. Rows go to benchmarks/results/ and results to results/; with
--quick or on a CPU to --out.

The Python is that of .venv, or else $PYTHON, or python3, with its own torch. Without a torch,
scripts/setup.sh makes .venv first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from on_gpu.parts import PUBLISHED_BLEU, RECIPE, ROOT, Machine, Places, all_parts, environment
from on_gpu.running import Part, Session

PROBE = """
import json, sys
try:
    import torch
except ImportError:
    print(json.dumps({"python": sys.version.split()[0], "torch": None, "gpus": 0}))
else:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    print(json.dumps({"python": sys.version.split()[0], "torch": torch.__version__, "gpus": gpus,
        "cuda": torch.version.cuda, "names": [torch.cuda.get_device_name(i) for i in range(gpus)]}))
"""
INSTALL_SECONDS = 1200.0
CODE = ("norm_plugin", "configs", "data-prep", "benchmarks", "tools", "tests")
BUILD = ("setup.py", "pyproject.toml", "requirements.lock")
SUFFIXES = {".py", ".cpp", ".h", ".inc", ".yaml"}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="scripts/gpu.sh", description=__doc__, formatter_class=style
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="as little as shows that all works")
    parser.add_argument("--minutes", type=float, default=120, metavar="N", help="default: 120")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install from there only")
    parser.add_argument("--raw", type=Path, metavar="DIR", help="holds multi30k/, else downloaded")
    parser.add_argument("--out", type=Path, default=ROOT / "work" / "gpu", metavar="DIR")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="only those that begin so")
    return parser.parse_args(argv)


def probe(python: str) -> dict[str, Any]:
    """Versions and GPUs of ``python``."""
    done = subprocess.run([python, "-c", PROBE], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def digest() -> str:
    """Of all code that a part may run, and of what it is built and tested with."""
    found = hashlib.sha256()
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*")]
    paths = [path for path in paths if path.suffix in SUFFIXES]
    for path in sorted([*paths, *(ROOT / name for name in BUILD)]):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def bleu_lines(results: Path) -> list[str]:
    """A line for each result with the recipe of the published score."""
    lines = []
    for path in sorted((results / RECIPE).glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        score = result["scores"]["tokenized"]["score"]
        published = f"published, post-norm LayerNorm: {PUBLISHED_BLEU}"
        lines.append(f"{RECIPE} {path.stem}: {score:.2f} BLEU ({published})")
    return lines


def main(argv: list[str] | None = None) -> int:
    """The command line; status 1 if a part failed."""
    args = parse_args(argv)
    deadline = time.monotonic() + 60 * args.minutes
    python, out = sys.executable, args.out.resolve()
    facts = probe(python)
    if args.device == "cuda" and facts["torch"] and not facts["gpus"]:
        print("error: torch finds no CUDA device; give --device cpu --quick", file=sys.stderr)
        return 2
    machine = Machine(args.device, facts["gpus"] if args.device == "cuda" else 0, digest())
    real = args.device == "cuda" and not args.quick
    rows = ROOT / "benchmarks" / "results" if real else out
    raw = args.raw.resolve() if args.raw else None
    places = Places(python, out, rows, ROOT / "results" if real else out / "results", raw)
    site = out / "site"
    facts.update(device=args.device, quick=args.quick, code=machine.code)
    session = Session(out, facts, environment(site, machine, raw), deadline)
    wheels = ("--wheels", str(args.wheels.resolve())) if args.wheels else ()
    words = ("tools/on_gpu/environment.py", "--site", str(site), *wheels)
    parts = [Part("install", (python, *words), INSTALL_SECONDS)]
    parts += all_parts(places, machine, args.quick)
    chosen = [part for part in parts if not args.parts or part.name.startswith(tuple(args.parts))]
    status = session.run(chosen)
    print("\n".join(bleu_lines(places.results)))
    return status


if __name__ == "__main__":
    sys.exit(main())
