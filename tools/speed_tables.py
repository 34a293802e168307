"""The cost of the norms: tables from the measurements in ``benchmarks/results/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from layers import BOTH, NOT_COMPILED, SIZES
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


def speed_table(name: str, root: Path) -> str:
    """Return a table of the project in ``root`` by its name."""
    tables = {
        "layers": (layers_table, "layers.csv"),
        "training": (training_table, "training.csv"),
        "kernels": (kernels_table, "training.csv"),
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
    rows = _shown(rows[pd.MultiIndex.from_frame(rows[["rows", "channels"]]).isin(SIZES)])
    if rows.empty:
        return _nothing("layers.py")
    cells = _cells(rows, SIZES)
    caption = [
        f"Time of one layer, forward and backward, float32, at {_text(SIZES)} with padding, as a "
        "ratio to `torch.nn.LayerNorm` in the same run. —: there is no such form, or it was not "
        "measured."
    ]
    copied = cells.get("copy", pd.Series(dtype=str)).get(("layernorm", ""), NO_FORM)
    if copied != NO_FORM:
        caption.append(f"A copy of x, which reads and writes it once, takes {copied}.")
    table = cells.reindex(columns=list(PROVIDERS), fill_value=NO_FORM).rename(columns=PROVIDERS)
    return "\n".join([_table(table, _named(rows)), "", *caption, *_origins(rows)])


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    compiled = (rows["norm"] == NOT_COMPILED) & (rows["provider"] == "compile")
    return rows[(rows["direction"] == BOTH) & ~compiled]


def _text(sizes: Iterable[tuple[int, int]]) -> str:
    return " / ".join(f"{rows:,} x {channels:,}" for rows, channels in sizes)


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
    rows = _fused(_training_rows(path))
    if rows.empty:
        return _nothing("training.py")
    table = _table(_of_training(rows, NORM), _named(rows))
    return "\n".join([table, "", TRAINING_CAPTION, *_origins(rows)])


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


# ---- on the host of a GPU ---------------------------------------------------------------------

HOST_CAPTION = (
    "Launches of a layer in training with padding, forward and backward, and its CPU time as a "
    "ratio to `torch.nn.LayerNorm`'s in turn; updates/s with each `--optimizer` as a ratio to "
    "stock fairseq's with the same one: the median of CPU times in turn, and its quartiles."
)


def host_table(path: Path) -> str:
    """Return launches, and what the host does for each norm and optimizer."""
    more = ("launches", "host_ratio", "ratio_p25", "ratio_p50", "ratio_p75")
    rows = read_rows(path, SAME_ON_HOST, (*more, *ORIGIN))
    if rows.empty:
        return _nothing("host.py")
    texts: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows.to_dict("records"):
        quartiles = f"{row['ratio_p25']:.2f} to {row['ratio_p75']:.2f}"
        of_norm = texts.setdefault((row["norm"], row["options"]), {})
        of_norm |= {"launches": f"{row['launches']}", "layer": f"{row['host_ratio']:.2f}"}
        of_norm[f"`{row['optimizer']}`"] = f"{row['ratio_p50']:.2f} ({quartiles})"
    index = pd.MultiIndex.from_tuples(texts, names=NORM)
    table = _table(pd.DataFrame(texts.values(), index), _named(rows))
    return "\n".join([table, "", HOST_CAPTION, *_origins(rows)])


# ---- on a GPU -------------------------------------------------------------------------------

GPU_SIZE = (16384, 1024)
GPU_LAYERS_CAPTION = (
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
    if rows.empty:
        return _nothing("gpu.py")
    texts: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows.to_dict("records"):
        of_norm = texts.setdefault((row["norm"], row["options"], row["provider"]), {})
        for name, column, form in (
            ("host", "host_ratio", "{:.2f}"),
            ("device", "device_ratio", "{:.2f}"),
            ("launches", "kernels", "{:.0f}"),
            ("of copy speed", "copy_share", "{:.0%}"),
        ):
            of_norm[f"{row['dtype']} {name}"] = form.format(row[column])
    index = pd.MultiIndex.from_tuples(texts, names=[*NORM, "form"])
    table = _table(pd.DataFrame(texts.values(), index), list(texts))
    where = f"At {GPU_SIZE[0]:,} x {GPU_SIZE[1]:,}. {GPU_LAYERS_CAPTION}"
    return "\n".join([table, "", where, *_origins(rows)])


def gpu_updates_table(path: Path) -> str:
    """Return updates/s on a GPU as ratios to stock fairseq's."""
    more = ("ratio_p25", "ratio_p50", "ratio_p75", "kernels", "busy_ms", "ms", "peak_mib")
    rows = read_rows(path, SAME_ON_GPU["updates"], (*more, *ORIGIN))
    if rows.empty:
        return _nothing("gpu.py")
    texts = {}
    for row in rows.to_dict("records"):
        ours, theirs = row["optimizer"], row["stock_optimizer"]
        optimizer = ours if ours == theirs else f"{ours}, stock {theirs}"
        texts[row["norm"], row["options"], optimizer] = {
            "updates/s": f"{row['ratio_p50']:.2f}",
            "quartiles": f"{row['ratio_p25']:.2f} to {row['ratio_p75']:.2f}",
            "kernels": _measured(row["kernels"], "{:.0f}"),
            "busy": _measured(row["busy_ms"] / row["ms"], "{:.0%}"),
            "MiB": _measured(row["peak_mib"], "{:,.0f}"),
        }
    index = pd.MultiIndex.from_tuples(texts, names=[*NORM, "optimizer"])
    table = _table(pd.DataFrame(texts.values(), index), list(texts))
    return "\n".join([table, "", GPU_UPDATES_CAPTION, *_origins(rows)])


def _measured(value: float, form: str) -> str:
    return MISSING if pd.isna(value) else form.format(value)


# ---- all -----------------------------------------------------------------------------------


def _named(rows: pd.DataFrame, registry: Iterable[str] = NORM_TYPES) -> list[tuple[str, str]]:
    """Return measured norms and options, and every other norm of the registry, in its order."""
    norms = list(zip(rows["norm"], rows["options"]))
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


def _origins(rows: pd.DataFrame) -> list[str]:
    """Return a line per machine, code and day: ``AMD EPYC (AVX2), 2 threads, torch ...``."""
    return [
        f"{origin.device} ({origin.vector}), threads: {origin.threads}, torch {origin.torch}, "
        f"Python {origin.python}, commit {origin.commit}, {origin.date}."
        for origin in rows[list(ORIGIN)].drop_duplicates().itertuples(index=False)
    ]


def _nothing(script: str) -> str:
    return f"{MISSING.capitalize()}; `python benchmarks/{script}` does it."
