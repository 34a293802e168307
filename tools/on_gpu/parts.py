"""What is checked, measured and trained, as commands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from on_gpu.running import Part

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60.0
MARKED = "device and not two_gpus"
SANITIZER = "compute-sanitizer"
PUBLISHED_BLEU = 41.02  # test2016 of Multi30k, Wu et al. 2021, post-norm LayerNorm
RECIPE = "multi30k_paper"  # the folder of the results of ``run multi30k preset=paper``
SEEDS = range(1, 11)
RUNS = (("layernorm", "post"), ("powernorm", "post"), ("layernorm", "pre"))
"""Norm and placement, in the order of their importance; then the same with other seeds."""


@dataclass(frozen=True)
class Places:
    """Where things are.

    Attributes:
        python: that runs everything.
        out: of the session: logs, summary, what is made on the way.
        rows: of the CSV files of the benchmarks.
        results: of the runs on Multi30k.
        raw: the folder that holds multi30k/, raw; None: the corpus is downloaded.
    """

    python: str
    out: Path
    rows: Path
    results: Path
    raw: Path | None


@dataclass(frozen=True)
class Machine:
    """What there is: ``cuda`` or ``cpu``, and the number of GPUs that torch sees."""

    device: str
    gpus: int
    code: str


def all_parts(places: Places, machine: Machine, quick: bool) -> Iterator[Part]:
    """Every part, in order; ``quick``: the same code, as little as shows that it works."""
    python = places.python
    toy = places.out / "toy"
    built = "they are there" if kernels_built(ROOT / "norm_plugin" / "kernels" / "cpu") else ""
    yield Part("kernels", (python, "setup.py", "build_ext", "--inplace"), 10 * MINUTE, built)
    yield from test_parts(python, machine, quick)
    sizes = ("--train", "400", "--valid", "40", "--test", "40")
    words = ("data-prep/toy.py", "--out", str(toy), "--workers", "1", *sizes)
    yield Part("toy corpus", (python, *words), 5 * MINUTE)
    shared = ("--device", machine.device, *(["--quick"] if quick else []))
    yield Part(
        "precision",
        (
            *(python, "tools/on_gpu/precision.py", "--data", str(toy / "bin"), *shared),
            *("--out", str(places.out), "--code", machine.code),
        ),
        20 * MINUTE,
    )
    yield from benchmark_parts(places, shared, toy, quick)
    yield from training_parts(places, quick)


def kernels_built(folder: Path) -> bool:
    """Whether the C++ kernels in ``folder`` were built from their sources as they are now."""
    sources = [path.stat().st_mtime for path in (folder / "csrc").iterdir()]
    return any(path.stat().st_mtime >= max(sources) for path in folder.glob("_native*.so"))


def test_parts(python: str, machine: Machine, quick: bool) -> Iterator[Part]:
    """The tests that touch a device, the same under NVIDIA's checker, and those for two GPUs."""
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    some = ("-k", "powernorm and not triton") if quick else ()
    rooms = ("tests/kernels", "tests/models")
    yield Part("tests", (*pytest, "-m", MARKED, *some, *rooms), 20 * MINUTE)
    no_sanitizer = "" if shutil.which(SANITIZER) else f"there is no {SANITIZER}"
    yield Part(
        "sanitizer",
        (SANITIZER, "--error-exitcode", "9", *pytest, "-x", "tests/kernels/test_triton_passes.py"),
        10 * MINUTE,
        no_sanitizer if machine.device == "cuda" else "it checks GPUs only",
    )
    few = f"torch sees {machine.gpus} GPUs" if machine.gpus < 2 else ""
    yield Part("two GPUs", (*pytest, "-m", "two_gpus", "tests/kernels"), 5 * MINUTE, few)


def benchmark_parts(
    places: Places, shared: Sequence[str], toy: Path, quick: bool
) -> Iterator[Part]:
    """What layers and whole updates cost."""
    python, rows = places.python, places.rows
    norms = ("--norms", "adanorm", "powernorm") if quick else ()
    words = ("benchmarks/gpu.py", *shared, *norms, "--output", str(rows / "gpu.csv"))
    yield Part("layers", (python, *words), 20 * MINUTE)
    few = ("--updates", "2", "--memory-updates", "1", "--threads", "1") if quick else ()
    data = ("--data", str(toy / "bin")) if quick else ()
    output = ("--output", str(rows / "gpu_training.csv"))
    words = ("benchmarks/training.py", *shared, *norms, *few, *data, *output)
    yield Part("updates", (python, *words), 20 * MINUTE)


def training_parts(places: Places, quick: bool) -> Iterator[Part]:
    """Runs on Multi30k until the time is over; quick: one on the toy corpus."""
    where = ("--work", str(places.out / "work"), "--results", str(places.results))
    run = (places.python, "-m", "norm_plugin.experiments", "run")
    if quick:
        yield Part("toy run", (*run, "toy", "--smoke", *where), 10 * MINUTE)
        return
    raw = () if places.raw is None else ("--raw", str(places.raw / "multi30k"))
    for seed in SEEDS:
        for norm, placement in RUNS:
            words = ("multi30k", "preset=paper", f"norm={norm}", f"placement={placement}")
            yield Part(
                f"multi30k {norm} {placement} {seed}",
                (*run, *words, f"seed={seed}", *raw, *where),
                6 * 60 * MINUTE,
            )


def environment(site: Path, machine: Machine, raw: Path | None) -> dict[str, str]:
    """The variables of every command."""
    paths = [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    found.update(NORM_TEST_DEVICE=machine.device, PYTHONUNBUFFERED="1")
    if machine.device == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = ""
        found.setdefault("OMP_NUM_THREADS", "1")  # of models so small, threads would only wait
    if raw is not None:
        found["NORM_DATA_DIR"] = str(raw)
    return found
