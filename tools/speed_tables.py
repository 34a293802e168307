"""What the norms cost: tables from the measurements in ``benchmarks/results/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from layers import BOTH, NOT_COMPILED, SIZES
from measuring.records import ORIGIN, SAME_LAYER, SAME_TRAINING, read_rows
from norm_plugin.analysis.study import markdown
from norm_plugin.norms import NORM_TYPES

RESULTS = Path("benchmarks") / "results"
PROVIDERS = {
    "fused": "fused",
    "compile": "`torch.compile`",
    "plain": "plain",
    "reference": "numpy (the tests')",
}
"""In the order of the columns, with their headings."""
GPU_PROVIDERS = ("fused", "compile", "plain")
COPY_SHARE = "GPU fused, of copy speed"
MISSING, NO_FORM = "not measured", "—"
Norm = tuple[str, str]
"""A norm and its options."""
NORM = ["norm", "options"]


def speed_table(name: str, root: Path) -> str:
    """The table ``layers``, ``training`` or ``kernels`` of the project in ``root``."""
    tables = {
        "layers": (layers_table, "layers.csv"),
        "training": (training_table, "training.csv"),
        "kernels": (kernels_table, "training.csv"),
    }
    table, file = tables[name]
    return table(root / RESULTS / file)


# ---- layers ---------------------------------------------------------------------------------


def layers_table(path: Path) -> str:
    """The time of each norm and form as a ratio to LayerNorm's, a cell all sizes."""
    cpu = read_rows(path, SAME_LAYER, ("ratio", *ORIGIN))
    more = ("ratio", *ORIGIN, "copy_share")
    gpu = read_rows(path.with_name("gpu.csv"), (*SAME_LAYER, "dtype"), more)
    cpu = _shown(cpu[pd.MultiIndex.from_frame(cpu[["rows", "channels"]]).isin(SIZES)])
    gpu = _shown(gpu[gpu["dtype"] == "float32"])
    if cpu.empty and gpu.empty:
        return _nothing("layers.py")
    gpu_sizes = sorted(set(zip(gpu["rows"], gpu["channels"])))
    rows = []
    for norm in _named(cpu, gpu):
        row = {"norm": f"`{norm[0]}`", "options": _code(norm[1])}
        for provider, heading in PROVIDERS.items():
            row[heading] = _cell(cpu, norm, SIZES, provider)
        for provider in () if gpu.empty else GPU_PROVIDERS:
            row[f"GPU {PROVIDERS[provider]}"] = _cell(gpu, norm, gpu_sizes, provider)
        if not gpu.empty:
            row[COPY_SHARE] = _cell(gpu, norm, gpu_sizes, "fused", "copy_share")
        rows.append(row)
    caption = [
        f"Time of one layer, forward and backward, float32, at {_text(SIZES)} with padding, as a "
        "ratio to `torch.nn.LayerNorm` in the same run. —: there is no such form, or it was not "
        "measured."
    ]
    copied = _cell(cpu, ("layernorm", ""), SIZES, "copy")
    if copied not in (MISSING, NO_FORM):
        caption.append(f"A copy of x, which reads and writes it once, takes {copied}.")
    if not gpu.empty:
        caption.append(
            f"GPU: the same at {_text(gpu_sizes)}. The last column is the share of the speed at "
            "which the device copies memory."
        )
    return "\n".join([_table(rows, text=2), "", *caption, *_origins(cpu, gpu)])


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    compiled = (rows["norm"] == NOT_COMPILED) & (rows["provider"] == "compile")
    return rows[(rows["direction"] == BOTH) & ~compiled]


def _text(sizes: Iterable[tuple[int, int]]) -> str:
    return " / ".join(f"{rows:,} x {channels:,}" for rows, channels in sizes)


def _cell(
    rows: pd.DataFrame,
    norm: Norm,
    sizes: Sequence[tuple[int, int]],
    provider: str,
    column: str = "ratio",
) -> str:
    """The value at each size; — where this norm has others, but not of this provider."""
    rows = _of(rows, norm)
    own = rows[rows["provider"] == provider]
    values = dict(zip(zip(own["rows"], own["channels"]), own[column]))
    if not any(size in values for size in sizes):
        return MISSING if rows.empty else NO_FORM
    shape = ".0%" if column == "copy_share" else ".2f"
    return " / ".join(format(values[size], shape) if size in values else MISSING for size in sizes)


# ---- training -------------------------------------------------------------------------------

TRAINING_CAPTION = (
    "Updates/s and peak memory of `norm_transformer_iwslt_de_en` as ratios to fairseq's own "
    "`transformer_iwslt_de_en` in the same run: the median over pairs of updates on the same "
    "batch, and its quartiles."
)
KERNELS_CAPTION = (
    "Updates/s as a ratio to fairseq's own Transformer in the same run: the median over pairs of "
    "updates on the same batch, and its quartiles. `auto`: fused; `off`: plain; `compile`: what "
    "`torch.compile` makes of the plain norm."
)
MODELS = {
    "iwslt14_de_en": "`norm_transformer_iwslt_de_en`",
    "multi30k_cpu": "`norm_transformer_multi30k_tiny`",
}
CHOICES = ("auto", "off", "compile")


def training_table(path: Path) -> str:
    """Updates/s and memory of a base model with each norm as ratios to stock fairseq's."""
    cpu, gpu = (_fused(_training_rows(path.with_name(n))) for n in (path.name, "gpu_training.csv"))
    if cpu.empty and gpu.empty:
        return _nothing("training.py")
    rows = []
    for norm in _named(cpu, gpu):
        row = {"norm": f"`{norm[0]}`", "options": _code(norm[1]), **_of_training(_of(cpu, norm))}
        if not gpu.empty:
            ratios = _of_training(_of(gpu, norm))
            row |= {f"GPU {heading}": ratio for heading, ratio in ratios.items()}
        rows.append(row)
    return "\n".join([_table(rows, text=2), "", TRAINING_CAPTION, *_origins(cpu, gpu)])


def kernels_table(path: Path) -> str:
    """Updates/s with each choice of kernels, a column a model, of the norms measured with all."""
    measured = _training_rows(path)
    plain = measured[measured["kernels"] == "off"]
    if plain.empty:
        return _nothing("training.py --kernels auto off compile")
    rows = []
    for norm in _named(plain, registry=()):
        of_norm = _of(measured, norm)
        for kernels in CHOICES:
            row = {"norm": f"`{norm[0]}`", "options": _code(norm[1]), "kernels": f"`{kernels}`"}
            for recipe, model in MODELS.items():
                of_model = of_norm[of_norm["recipe"] == recipe]
                ratios = _of_training(of_model[of_model["kernels"] == kernels])
                known = ratios["updates/s"] != MISSING
                row[model] = "{updates/s} ({quartiles})".format_map(ratios) if known else MISSING
            rows.append(row)
    shown = measured[pd.MultiIndex.from_frame(measured[NORM]).isin(_named(plain, registry=()))]
    return "\n".join([_table(rows, text=3), "", KERNELS_CAPTION, *_origins(shown)])


def _training_rows(path: Path) -> pd.DataFrame:
    columns = ("ratio_p25", "ratio_p50", "ratio_p75", "updates_per_s", "peak_mib", "peak_ratio")
    return read_rows(path, SAME_TRAINING, (*columns, *ORIGIN))


def _fused(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["recipe"] == "iwslt14_de_en") & (rows["kernels"] == "auto")]


def _of_training(rows: pd.DataFrame) -> dict[str, str]:
    if rows.empty:
        return dict.fromkeys(("updates/s", "quartiles", "memory"), MISSING)
    row = rows.iloc[-1]
    low, middle, high = (row[f"ratio_p{p}"] for p in (25, 50, 75))
    # A handful of pairs tells hundredths at best, and none where the quartiles are tenths apart
    digits = 1 if high - low >= 0.1 else 2
    return {
        "updates/s": f"{middle:.{digits}f}",
        "quartiles": f"{low:.{digits}f} to {high:.{digits}f}",
        "memory": MISSING if pd.isna(row["peak_ratio"]) else f"{row['peak_ratio']:.2f}",
    }


# ---- both -----------------------------------------------------------------------------------


def _of(rows: pd.DataFrame, norm: Norm) -> pd.DataFrame:
    return rows[(rows["norm"] == norm[0]) & (rows["options"] == norm[1])]


def _named(*tables: pd.DataFrame, registry: Iterable[str] = NORM_TYPES) -> list[Norm]:
    """Norms and options as measured, and every other norm of the registry, in its order."""
    norms = [norm for table in tables for norm in zip(table["norm"], table["options"])]
    norms += [(name, "") for name in registry if name not in dict(norms)]
    order = {name: number for number, name in enumerate(NORM_TYPES)}
    return sorted(dict.fromkeys(norms), key=lambda norm: order.get(norm[0], len(order)))


def _table(rows: Sequence[dict[str, str]], text: int) -> str:
    """Markdown; the columns after the first ``text`` hold numbers."""
    numbers = len(rows[0]) - text
    return markdown(pd.DataFrame(rows), ["---"] * text + ["---:"] * numbers)


def _origins(*tables: pd.DataFrame) -> list[str]:
    """One line for each machine, code and day: ``CPU: AMD EPYC (AVX2), 2 threads, torch ...``.

    The first table is of a CPU, the second of a GPU.
    """
    lines = []
    for kind, rows in zip(("CPU", "GPU"), tables):
        for origin in rows[list(ORIGIN)].drop_duplicates().itertuples(index=False):
            threads = f", {origin.threads} threads" if kind == "CPU" else ""
            lines.append(
                f"{kind}: {origin.device} ({origin.vector}){threads}, torch {origin.torch}, "
                f"Python {origin.python}, commit {origin.commit}, {origin.date}."
            )
        if rows.empty:
            lines.append(f"{kind}: {MISSING}.")
    return lines


def _nothing(script: str) -> str:
    return f"CPU: {MISSING}; `python benchmarks/{script}` does it. GPU: {MISSING}."


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
