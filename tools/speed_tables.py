"""The cost of the norms: tables from the measurements in ``benchmarks/results/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from layers import SIZES
from measuring.records import (
    ORIGIN,
    SAME_LAYER,
    SAME_ON_GPU,
    SAME_ON_HOST,
    SAME_TRAINING,
    read_rows,
)
from norm_lab.report.text import markdown
from norm_plugin.norms import NORM_TYPES

RESULTS = Path("benchmarks") / "results"
PROVIDERS = {
    "fused": "fused",
    "compile": "`torch.compile`",
    "plain": "plain",
}
"""The headings of the columns, in their order."""
MISSING, NO_FORM = "not measured", "—"
NORM = ["norm", "options"]
QUARTILES = ("ratio_p25", "ratio_p50", "ratio_p75")
Texts = dict[tuple[str, ...], dict[str, str]]
"""The cells of a table, by the names of its row and by column."""


def speed_table(name: str, root: Path) -> str:
    """Return a table of the project in ``root`` by its name."""
    tables = {
        "layers": (layers_table, "layers.csv"),
        "training": (training_table, "training.csv"),
        "host": (host_table, "host.csv"),
        "gpu_layers": (gpu_layers_table, "gpu_layers.csv"),
        "gpu_updates": (gpu_updates_table, "gpu_updates.csv"),
    }
    table, file = tables[name]
    return table(root / RESULTS / file)


# ---- layers ---------------------------------------------------------------------------------


def layers_table(path: Path) -> str:
    """Return the time of each norm and form as a ratio to LayerNorm's; a cell has all sizes."""
    rows = read_rows(path, SAME_LAYER, ("ratio", *ORIGIN))
    rows = rows[pd.MultiIndex.from_frame(rows[["rows", "channels"]]).isin(SIZES)]
    if rows.empty:
        return _nothing("layers.py")
    cells = _cells(rows, SIZES)
    sizes = " / ".join(f"{positions:,} x {channels:,}" for positions, channels in SIZES)
    caption = (
        f"Time of one layer, forward and backward, float32, at {sizes} with padding, as a ratio to "
        "`torch.nn.LayerNorm` in the same run. —: there is no such form, or it was not measured."
    )
    copied = cells.get("copy", pd.Series(dtype=str)).get(("layernorm", ""), NO_FORM)
    if copied != NO_FORM:
        caption += f"\nA copy of x, which reads and writes it once, takes {copied}."
    table = cells.reindex(columns=list(PROVIDERS), fill_value=NO_FORM).rename(columns=PROVIDERS)
    return _with_caption(table, _named(rows), caption, rows)


def _cells(rows: pd.DataFrame, sizes: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Return one row per norm, one column per provider: the ratios at each size."""
    values = rows.set_index([*NORM, "provider", "rows", "channels"])["ratio"].map("{:.2f}".format)
    of_sizes = values.unstack(["rows", "channels"], fill_value=MISSING)
    of_sizes = of_sizes.reindex(columns=list(sizes), fill_value=MISSING)
    return of_sizes.agg(" / ".join, axis="columns").unstack("provider", fill_value=NO_FORM)


# ---- training -------------------------------------------------------------------------------

TRAINING_CAPTION = (
    "Updates/s and peak memory of `norm_transformer_iwslt_de_en` as ratios to fairseq's own "
    "`transformer_iwslt_de_en` in the same run: the median over pairs of updates on the same "
    "batch, and its quartiles."
)


def training_table(path: Path) -> str:
    """Return updates/s and memory of a base model with each norm as ratios to stock fairseq's."""
    rows = read_rows(path, SAME_TRAINING, (*QUARTILES, "peak_ratio", *ORIGIN))
    rows = rows[(rows["recipe"] == "iwslt14_de_en") & (rows["kernels"] == "auto")]
    texts: Texts = {}
    for row in rows.to_dict("records"):
        low, middle, high = (row[name] for name in QUARTILES)
        # A few pairs determine hundredths at best, and no digit if the quartiles are tenths apart
        digits = 1 if high - low >= 0.1 else 2
        texts[row["norm"], row["options"]] = {
            "updates/s": f"{middle:.{digits}f}",
            "quartiles": f"{low:.{digits}f} to {high:.{digits}f}",
            "memory": _measured(row["peak_ratio"], "{:.2f}"),
        }
    return _table(texts, TRAINING_CAPTION, rows, "training.py")


# ---- on the host of a GPU ---------------------------------------------------------------------

HOST_CAPTION = (
    "Launches of a layer in training with padding, forward and backward, and its CPU time as a "
    "ratio to `torch.nn.LayerNorm`'s in turn; updates/s with each `--optimizer` as a ratio to "
    "stock fairseq's with the same one: the median of CPU times in turn, and its quartiles."
)


def host_table(path: Path) -> str:
    """Return launches, and what the host does for each norm and optimizer."""
    rows = read_rows(path, SAME_ON_HOST, ("launches", "host_ratio", *QUARTILES, *ORIGIN))
    texts: Texts = {}
    for row in rows.to_dict("records"):
        of_norm = texts.setdefault((row["norm"], row["options"]), {})
        of_norm |= {"launches": f"{row['launches']}", "layer": f"{row['host_ratio']:.2f}"}
        of_norm[f"`{row['optimizer']}`"] = f"{row['ratio_p50']:.2f} ({_quartiles(row)})"
    return _table(texts, HOST_CAPTION, rows, "host.py")


# ---- on a GPU -------------------------------------------------------------------------------

GPU_SIZE = (16384, 1024)
GPU_LAYERS_CAPTION = (
    f"At {GPU_SIZE[0]:,} x {GPU_SIZE[1]:,}. "
    "Time of one layer, forward and backward, with padding, as a ratio to `torch.nn.LayerNorm` in "
    "the same run: on the host, which launches kernels without a pause, and on the device. The "
    "last column is the share of the speed at which the device copies memory."
)
GPU_UPDATES_CAPTION = (
    "Updates/s of `norm_transformer_iwslt_de_en` as a ratio to fairseq's own "
    "`transformer_iwslt_de_en` in the same run: the median over pairs of updates on the same "
    "batch, and its quartiles. Kernels, the time in which the device is busy, and memory are those "
    "of one update. Both models have the same optimizer, but in rows that name two."
)


def gpu_layers_table(path: Path) -> str:
    """Return host, device and launches of each norm on a GPU, beside the layers of libraries."""
    more = ("host_ratio", "device_ratio", "kernels", "copy_share")
    rows = read_rows(path, SAME_ON_GPU["layers"], (*more, *ORIGIN))
    rows = rows[(rows["rows"] == GPU_SIZE[0]) & (rows["channels"] == GPU_SIZE[1])]
    texts: Texts = {}
    for row in rows.to_dict("records"):
        of_norm = texts.setdefault((row["norm"], row["options"], row["provider"]), {})
        for name, column, form in (
            ("host", "host_ratio", "{:.2f}"),
            ("device", "device_ratio", "{:.2f}"),
            ("launches", "kernels", "{:.0f}"),
            ("of copy speed", "copy_share", "{:.0%}"),
        ):
            of_norm[f"{row['dtype']} {name}"] = form.format(row[column])
    return _table(texts, GPU_LAYERS_CAPTION, rows, "gpu.py", "form")


def gpu_updates_table(path: Path) -> str:
    """Return updates/s on a GPU as ratios to stock fairseq's."""
    more = (*QUARTILES, "kernels", "busy_ms", "ms", "peak_mib")
    rows = read_rows(path, SAME_ON_GPU["updates"], (*more, *ORIGIN))
    texts: Texts = {}
    for row in rows.to_dict("records"):
        ours, theirs = row["optimizer"], row["stock_optimizer"]
        optimizer = ours if ours == theirs else f"{ours}, stock {theirs}"
        texts[row["norm"], row["options"], optimizer] = {
            "updates/s": f"{row['ratio_p50']:.2f}",
            "quartiles": _quartiles(row),
            "kernels": _measured(row["kernels"], "{:.0f}"),
            "busy": _measured(row["busy_ms"] / row["ms"], "{:.0%}"),
            "MiB": _measured(row["peak_mib"], "{:,.0f}"),
        }
    return _table(texts, GPU_UPDATES_CAPTION, rows, "gpu.py", "optimizer")


# ---- all -----------------------------------------------------------------------------------


def _measured(value: float, form: str) -> str:
    return MISSING if pd.isna(value) else form.format(value)


def _quartiles(row: dict[str, Any]) -> str:
    return f"{row['ratio_p25']:.2f} to {row['ratio_p75']:.2f}"


def _table(texts: Texts, caption: str, rows: pd.DataFrame, script: str, third: str = "") -> str:
    """Return a table with a row for every norm, measured or not.

    If it has a ``third`` column, which names its rows too, it has what was measured.
    """
    if not texts:
        return _nothing(script)
    index = pd.MultiIndex.from_tuples(texts, names=[*NORM, third] if third else NORM)
    names = list(texts) if third else _named(rows)
    return _with_caption(pd.DataFrame(texts.values(), index), names, caption, rows)


def _named(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return measured norms and options, and every other norm of the registry, in its order."""
    norms = list(zip(rows["norm"], rows["options"]))
    norms += [(name, "") for name in NORM_TYPES if name not in dict(norms)]
    order = {name: number for number, name in enumerate(NORM_TYPES)}
    return sorted(dict.fromkeys(norms), key=lambda norm: order.get(norm[0], len(order)))


def _with_caption(
    table: pd.DataFrame, names: Iterable[tuple[str, ...]], caption: str, rows: pd.DataFrame
) -> str:
    """Return a table of texts with these rows, of which missing ones were not measured.

    Its caption follows, and a line for each machine, code and day of the measurements ``rows``.
    """
    columns = table.index.names
    table = table.reindex(pd.MultiIndex.from_tuples(names, names=columns)).fillna(MISSING)
    table = table.reset_index()
    for name in columns:
        table[name] = [f"`{text}`" if text else "" for text in table[name]]
    numbers = len(table.columns) - len(columns)
    origins = [
        f"{origin.device} ({origin.vector}), threads: {origin.threads}, torch {origin.torch}, "
        f"Python {origin.python}, commit {origin.commit}, {origin.date}."
        for origin in rows[list(ORIGIN)].drop_duplicates().itertuples(index=False)
    ]
    shown = markdown(table, ["---"] * len(columns) + ["---:"] * numbers)
    return "\n".join([shown, "", caption, *origins])


def _nothing(script: str) -> str:
    return f"{MISSING.capitalize()}; `python benchmarks/{script}` does it."
