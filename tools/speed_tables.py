"""The cost of the norms: tables from the measurements in ``benchmarks/results/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from layers import BOTH, NOT_COMPILED, SIZES
from measuring.records import ORIGIN, SAME_LAYER, SAME_TRAINING, read_rows
from norm_lab.report.text import markdown
from norm_plugin.norms import NORM_TYPES

RESULTS = Path("benchmarks") / "results"
PROVIDERS = {
    "fused": "fused",
    "compile": "`torch.compile`",
    "plain": "plain",
    "reference": "numpy (the tests')",
}
"""The headings of the columns, in their order."""
GPU_PROVIDERS = ("fused", "compile", "plain")
COPY_SHARE = "GPU fused, of copy speed"
MISSING, NO_FORM = "not measured", "—"
NORM = ["norm", "options"]


def speed_table(name: str, root: Path) -> str:
    """Return the table ``layers``, ``training`` or ``kernels`` of the project in ``root``."""
    tables = {
        "layers": (layers_table, "layers.csv"),
        "training": (training_table, "training.csv"),
        "kernels": (kernels_table, "training.csv"),
    }
    table, file = tables[name]
    return table(root / RESULTS / file)


# ---- layers ---------------------------------------------------------------------------------


def layers_table(path: Path) -> str:
    """Return the time of each norm and form as a ratio to LayerNorm's; a cell has all sizes."""
    cpu = read_rows(path, SAME_LAYER, ("ratio", *ORIGIN))
    more = ("ratio", *ORIGIN, "copy_share")
    gpu = read_rows(path.with_name("gpu.csv"), (*SAME_LAYER, "dtype"), more)
    cpu = _shown(cpu[pd.MultiIndex.from_frame(cpu[["rows", "channels"]]).isin(SIZES)])
    gpu = _shown(gpu[gpu["dtype"] == "float32"])
    if cpu.empty and gpu.empty:
        return _nothing("layers.py")
    gpu_sizes = sorted(set(zip(gpu["rows"], gpu["channels"])))
    of_cpu = _cells(cpu, SIZES)
    columns = [_of_providers(of_cpu, PROVIDERS)]
    caption = [
        f"Time of one layer, forward and backward, float32, at {_text(SIZES)} with padding, as a "
        "ratio to `torch.nn.LayerNorm` in the same run. —: there is no such form, or it was not "
        "measured."
    ]
    copied = of_cpu.get("copy", pd.Series(dtype=str)).get(("layernorm", ""), NO_FORM)
    if copied != NO_FORM:
        caption.append(f"A copy of x, which reads and writes it once, takes {copied}.")
    if not gpu.empty:
        shares = _cells(gpu, gpu_sizes, "copy_share", "{:.0%}")
        columns += [
            _of_providers(_cells(gpu, gpu_sizes), GPU_PROVIDERS).add_prefix("GPU "),
            _of_providers(shares, ["fused"]).set_axis([COPY_SHARE], axis="columns"),
        ]
        caption.append(
            f"GPU: the same at {_text(gpu_sizes)}, on the device, and what the host takes beyond a "
            "millisecond. The last column is the share of the speed at which the device copies "
            "memory."
        )
    table = _table(pd.concat(columns, axis="columns"), _named(cpu, gpu))
    return "\n".join([table, "", *caption, *_origins(cpu, gpu)])


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    compiled = (rows["norm"] == NOT_COMPILED) & (rows["provider"] == "compile")
    return rows[(rows["direction"] == BOTH) & ~compiled]


def _text(sizes: Iterable[tuple[int, int]]) -> str:
    return " / ".join(f"{rows:,} x {channels:,}" for rows, channels in sizes)


def _cells(
    rows: pd.DataFrame,
    sizes: Sequence[tuple[int, int]],
    column: str = "ratio",
    form: str = "{:.2f}",
) -> pd.DataFrame:
    """Return one row per norm, one column per provider: the values at each size."""
    values = rows.set_index([*NORM, "provider", "rows", "channels"])[column].map(form.format)
    of_sizes = values.unstack(["rows", "channels"], fill_value=MISSING)
    of_sizes = of_sizes.reindex(columns=list(sizes), fill_value=MISSING)
    return of_sizes.agg(" / ".join, axis="columns").unstack("provider", fill_value=NO_FORM)


def _of_providers(cells: pd.DataFrame, providers: Iterable[str]) -> pd.DataFrame:
    """Return the columns of these providers, with their headings."""
    return cells.reindex(columns=list(providers), fill_value=NO_FORM).rename(columns=PROVIDERS)


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
    """Return updates/s and memory of a base model with each norm as ratios to stock fairseq's."""
    cpu, gpu = (_fused(_training_rows(path.with_name(n))) for n in (path.name, "gpu_training.csv"))
    if cpu.empty and gpu.empty:
        return _nothing("training.py")
    columns = [_of_training(cpu, NORM)]
    if not gpu.empty:
        columns.append(_of_training(gpu, NORM).add_prefix("GPU "))
    table = _table(pd.concat(columns, axis="columns"), _named(cpu, gpu))
    return "\n".join([table, "", TRAINING_CAPTION, *_origins(cpu, gpu)])


def training_costs(path: Path) -> pd.DataFrame:
    """Return the columns ``updates/s`` and ``memory`` of :func:`training_table` for one device.

    The index has the norm and its options; a ratio that was not measured is empty.
    """
    costs = _of_training(_fused(_training_rows(path)), NORM)
    return costs.replace(MISSING, "")


def kernels_table(path: Path) -> str:
    """Return updates/s for each choice of kernels and model, of norms measured with all."""
    measured = _training_rows(path)
    plain = measured[measured["kernels"] == "off"]
    if plain.empty:
        return _nothing("training.py --kernels auto off compile")
    norms = _named(plain, registry=())
    texts = _of_training(measured, [*NORM, "kernels", "recipe"])
    table = (texts["updates/s"] + " (" + texts["quartiles"] + ")").unstack("recipe")
    table = table.reindex(columns=list(MODELS)).rename(columns=MODELS)
    rows = [(*norm, kernels) for norm in norms for kernels in CHOICES]
    shown = measured[pd.MultiIndex.from_frame(measured[NORM]).isin(norms)]
    return "\n".join([_table(table, rows), "", KERNELS_CAPTION, *_origins(shown)])


def _training_rows(path: Path) -> pd.DataFrame:
    columns = ("ratio_p25", "ratio_p50", "ratio_p75", "updates_per_s", "peak_mib", "peak_ratio")
    return read_rows(path, SAME_TRAINING, (*columns, *ORIGIN))


def _fused(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["recipe"] == "iwslt14_de_en") & (rows["kernels"] == "auto")]


def _of_training(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return texts of the last row for each value of the columns ``by``."""
    texts = {}
    for row in rows.to_dict("records"):
        low, middle, high = (row[f"ratio_p{p}"] for p in (25, 50, 75))
        # A few pairs determine hundredths at best, and no digit if the quartiles are tenths apart
        digits = 1 if high - low >= 0.1 else 2
        texts[tuple(row[name] for name in by)] = (
            f"{middle:.{digits}f}",
            f"{low:.{digits}f} to {high:.{digits}f}",
            MISSING if pd.isna(row["peak_ratio"]) else f"{row['peak_ratio']:.2f}",
        )
    index = pd.MultiIndex.from_tuples(texts, names=by)
    return pd.DataFrame(texts.values(), index, ["updates/s", "quartiles", "memory"])


# ---- both -----------------------------------------------------------------------------------


def _named(*tables: pd.DataFrame, registry: Iterable[str] = NORM_TYPES) -> list[tuple[str, str]]:
    """Return measured norms and options, and every other norm of the registry, in its order."""
    norms = [norm for table in tables for norm in zip(table["norm"], table["options"])]
    norms += [(name, "") for name in registry if name not in dict(norms)]
    order = {name: number for number, name in enumerate(NORM_TYPES)}
    return sorted(dict.fromkeys(norms), key=lambda norm: order.get(norm[0], len(order)))


def _table(table: pd.DataFrame, rows: Sequence[tuple[str, ...]]) -> str:
    """Return Markdown of ``rows`` of a table of texts; missing ones were not measured."""
    names = table.index.names
    table = table.reindex(pd.MultiIndex.from_tuples(rows, names=names)).fillna(MISSING)
    table = table.reset_index()
    for name in names:
        table[name] = [f"`{text}`" if text else "" for text in table[name]]
    numbers = len(table.columns) - len(names)
    return markdown(table, ["---"] * len(names) + ["---:"] * numbers)


def _origins(*tables: pd.DataFrame) -> list[str]:
    """Return a line per machine, code and day: ``CPU: AMD EPYC (AVX2), 2 threads, torch ...``.

    The first table is that of a CPU, the second that of a GPU.
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
