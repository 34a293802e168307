"""What the norms cost: tables from the measurements in ``benchmarks/results/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from measuring.providers import BOTH, NOT_COMPILED
from measuring.records import ORIGIN, SAME_LAYER, SAME_TRAINING, Key, Row, newest, read_rows
from measuring.setups import SIZES
from norm_plugin.commands.command_line import CommandError
from norm_plugin.norms import NORM_TYPES

RESULTS = Path("benchmarks") / "results"
PROVIDERS = {
    "fused": "fused",
    "compile": "`torch.compile`",
    "plain": "plain",
    "reference": "numpy (the tests')",
}
"""In the order of the columns, with their headings."""
GPU_PROVIDERS = {
    "fused": "GPU fused",
    "compile": "GPU `torch.compile`",
    "plain": "GPU plain",
}
COPY_SHARE = "GPU fused, of copy speed"
MISSING = "not measured"


def speed_table(name: str, root: Path) -> str:
    """The table ``layers`` or ``training`` of the project in ``root``."""
    tables = {"layers": layers_table, "training": training_table}
    if name not in tables:
        raise CommandError(f"no table 'speed/{name}'; there are {', '.join(tables)}")
    return tables[name](root / RESULTS / f"{name}.csv")


def layers_table(path: Path) -> str:
    """The time of each norm and form as a ratio to LayerNorm's, a cell all sizes."""
    ours, theirs = _layers(path, ()), _layers(path.with_name("gpu.csv"), ("dtype", "copy_share"))
    if not ours and not theirs:
        return _nothing("layers.py")
    sizes = sorted({(int(row["rows"]), int(row["channels"])) for row in theirs.values()})
    gpu = list(GPU_PROVIDERS) if theirs else []
    heads = [*PROVIDERS.values(), *(GPU_PROVIDERS[provider] for provider in gpu)]
    heads += [COPY_SHARE] if theirs else []
    lines = [_line(["norm", "options", *heads]), _line(["---", "---", *["---:"] * len(heads)])]
    rows = [*ours.values(), *theirs.values()]
    for norm, options in _named((row["norm"], row["options"]) for row in rows):
        values = [_cell(ours, (norm, options), SIZES, provider) for provider in PROVIDERS]
        values += [_cell(theirs, (norm, options), sizes, provider) for provider in gpu]
        values += [_cell(theirs, (norm, options), sizes, "fused", "copy_share")] if theirs else []
        lines.append(_line([f"`{norm}`", _code(options), *values]))
    caption = [
        f"Time of one layer, forward and backward, float32, at {_shown(SIZES)} with padding, as a "
        "ratio to `torch.nn.LayerNorm` in the same run. —: there is no such form, or it was not "
        "measured."
    ]
    if theirs:
        caption.append(
            f"GPU: the same at {_shown(sizes)}. The last column is the share of the speed at which "
            "the device copies memory."
        )
    origins = [_origin(row, "GPU") for row in theirs.values()]
    return "\n".join([*lines, "", *caption, *_origins(ours.values(), origins)])


def _layers(path: Path, more: Sequence[str]) -> dict[Key, Row]:
    """The newest rows of a file, forward and backward in float32."""
    rows = newest(read_rows(path, (*SAME_LAYER, "ratio", *ORIGIN, *more)), (*SAME_LAYER, *more[:1]))
    return {
        key[: len(SAME_LAYER)]: row
        for key, row in rows.items()
        if row["direction"] == BOTH
        and row.get("dtype", "float32") == "float32"
        and (more or (int(row["rows"]), int(row["channels"])) in SIZES)
        and not (row["norm"] == NOT_COMPILED and row["provider"] == "compile")
    }


def _shown(sizes: Iterable[tuple[int, int]]) -> str:
    return " / ".join(f"{rows:,} x {channels:,}" for rows, channels in sizes)


def _cell(
    rows: dict[Key, Row],
    norm: Key,
    sizes: Sequence[tuple[int, int]],
    provider: str,
    column: str = "ratio",
) -> str:
    """The value at each size; — where this norm has others, but not of this provider."""
    keys = [(*norm, provider, str(n), str(c), BOTH) for n, c in sizes]
    shape = ".0%" if column == "copy_share" else ".2f"
    values = [format(float(rows[key][column]), shape) if key in rows else "" for key in keys]
    if not any(values):
        return "—" if any(key[:2] == norm for key in rows) else MISSING
    return " / ".join(value or MISSING for value in values)


TRAINING_CAPTION = (
    "Updates/s and peak memory of `norm_transformer_iwslt_de_en` as ratios to fairseq's own "
    "`transformer_iwslt_de_en` in the same run: the median over pairs of updates on the same "
    "batch, and its quartiles."
)


def training_table(path: Path) -> str:
    """Updates/s and memory of a model with each norm as ratios to stock fairseq's."""
    wanted = ("ratio_p25", "ratio_p50", "ratio_p75", "updates_per_s", "peak_mib", "peak_ratio")
    cells = newest(read_rows(path, (*SAME_TRAINING, *wanted, *ORIGIN)), SAME_TRAINING)
    gpu = newest(
        read_rows(path.with_name("gpu_training.csv"), (*SAME_TRAINING, *wanted, *ORIGIN)),
        SAME_TRAINING,
    )
    if not cells and not gpu:
        return _nothing("training.py")
    heads = ["updates/s", "quartiles", "memory"]
    heads += [f"GPU {head}" for head in heads] if gpu else []
    lines = [_line(["norm", "options", "kernels", *heads])]
    lines += [_line(["---"] * 3 + ["---:"] * len(heads))]
    kinds = sorted({row["kernels"] for row in [*cells.values(), *gpu.values()]})
    pairs = [(row["norm"], row["options"]) for row in [*cells.values(), *gpu.values()]]
    for norm, options in _named(pairs):
        ours, theirs = (_by_kernels(rows, norm, options) for rows in (cells, gpu))
        for kind in [kind for kind in kinds if kind in {**ours, **theirs}] or [""]:
            values = _ratios_of_training(ours.get(kind))
            values += _ratios_of_training(theirs.get(kind)) if gpu else []
            lines.append(_line([f"`{norm}`", _code(options), kind, *values]))
    origins = [_origin(row, "GPU") for row in gpu.values()]
    return "\n".join([*lines, "", TRAINING_CAPTION, *_origins(cells.values(), origins)])


def _by_kernels(rows: dict[Key, Row], norm: str, options: str) -> dict[str, Row]:
    """The rows of a norm with these options, by what computed it."""
    found = [row for row in rows.values() if (row["norm"], row["options"]) == (norm, options)]
    return {row["kernels"]: row for row in found}


def _ratios_of_training(row: Row | None) -> list[str]:
    if row is None:
        return [MISSING] * 3
    low, middle, high = (float(row[f"ratio_p{p}"]) for p in (25, 50, 75))
    # A handful of pairs tells hundredths at best, and none where the quartiles are tenths apart
    digits = 1 if high - low >= 0.1 else 2
    memory = f"{float(row['peak_ratio']):.2f}" if row["peak_ratio"] else MISSING
    return [f"{middle:.{digits}f}", f"{low:.{digits}f} to {high:.{digits}f}", memory]


def _named(found: Iterable[Key]) -> list[Key]:
    """Norm and options as found, and every other norm of the registry, in its order."""
    pairs = list(dict.fromkeys(found))
    order = {name: number for number, name in enumerate(NORM_TYPES)}
    pairs += [(name, "") for name in NORM_TYPES if name not in {norm for norm, _ in pairs}]
    return sorted(pairs, key=lambda pair: order.get(pair[0], len(order)))


def _origins(rows: Iterable[Row], gpu: Iterable[str] = ()) -> list[str]:
    """One line for each machine, code and day of the rows; ``gpu``: the lines of the GPU."""
    lines = {"CPU": [_origin(row, "CPU") for row in rows], "GPU": list(gpu)}
    return [
        line
        for kind, found in lines.items()
        for line in list(dict.fromkeys(found)) or [f"{kind}: {MISSING}."]
    ]


def _origin(row: Row, kind: str) -> str:
    """Where a row comes from: ``CPU: AMD EPYC (AVX2), 2 threads, torch 2.13.0, ...``."""
    device, vector, threads, torch, python, commit, date = (row[name] for name in ORIGIN)
    place = f"{device} ({vector})" + (f", {threads} threads" if kind == "CPU" else "")
    return f"{kind}: {place}, torch {torch}, Python {python}, commit {commit}, {date}."


def _nothing(script: str) -> str:
    return f"CPU: {MISSING}; `python benchmarks/{script}` does it. GPU: {MISSING}."


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
