"""The measurements of the claims as files, and the tables and figures of papers/theory.md."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

import norm_plugin
from norm_lab.report.figure import Figure
from norm_lab.report.text import markdown
from norm_lab.results.provenance import git_state, short_commit, versions
from norm_plugin.io.files import read_json, write_json, write_text
from papers.theory import CLAIMS
from papers.theory.claim import INTERVAL, Options, Row, finite_cases

MADE = "made.json"
SHOWN = {"layer_scale": "RMS pre-scaling"}
"""The titles of columns whose stored names are others."""


def measure(name: str, options: Options) -> Iterator[Row]:
    """Yield the rows of measurements of a claim."""
    claim = CLAIMS[name]
    if hasattr(claim, "measure_once"):
        yield from claim.measure_once(options)
    for placement in options.placements if hasattr(claim, "measure") else ():
        yield from claim.measure(options, placement)


def origin(command: str, options: Options) -> Row:
    """Return the origin of measurements for ``made.json``: command, settings, commit, versions."""
    settings: Row = {
        "norm": "layernorm",
        "L": " ".join(map(str, options.layers)),
        "depth": options.depth,
        "d": options.dim,
        "d of the full model": options.full_dim,
        "seeds": options.seeds,
    }
    if options.data is not None:
        settings["data"] = corpus_name(options.data)
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "git": git_state(Path(norm_plugin.__file__).parent),
        "settings": settings,
        "versions": versions(),
    }


def corpus_name(data: Path) -> str:
    """Return a corpus's name and checksum from its manifest, or else the name of the folder."""
    path = data.parent / "manifest.json"
    manifest = read_json(path) if path.is_file() else {}
    corpus, checksum = manifest.get("corpus", data.name), str(manifest.get("checksum", ""))
    return f"{corpus} {checksum[:16]}".strip()


def store(name: str, rows: list[Row], made: Row, folder: Path) -> None:
    """Write the measurements of a claim and their origin; this replaces older ones."""
    frame = pd.DataFrame(rows)
    text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(folder / f"{name}.csv", text)
    write_json(folder / MADE, {**read_made(folder), name: made}, sort_keys=True)


def read_made(folder: Path) -> dict[str, Any]:
    """Return the origin of the measurements of each claim in ``folder``, by its name."""
    path = folder / MADE
    return dict(read_json(path)) if path.exists() else {}


def read_measurements(name: str, folder: Path) -> pd.DataFrame:
    """Read what :func:`store` has written; only empty cells and ``nan`` are missing values."""
    return pd.read_csv(folder / f"{name}.csv", keep_default_na=False, na_values=["", "nan"])


def draw(name: str, folder: Path) -> None:
    """Draw the figure of a claim that has one from its measurements in ``folder``."""
    claim = CLAIMS[name]
    if hasattr(claim, "plot"):
        finite, _ = finite_cases(claim, read_measurements(name, folder))
        plot = partial(claim.plot, finite) if len(finite) else lambda axes: None
        figure = Figure(name, claim.CAPTION, finite, plot, height=3.6)
        write_text(folder / f"{name}.svg", figure.standalone)


def block(name: str, folder: Path, page: Path) -> str:
    """Return the tables of a claim in Markdown, from its measurements in ``folder``.

    Args:
        page: the folder of the page, from which links are relative.
    """
    claim, made = CLAIMS[name], read_made(folder)[name]
    finite, left_out = finite_cases(claim, read_measurements(name, folder))
    tables = [pd.DataFrame([*left_out, *(claim.verdicts(finite) if len(finite) else [])])]
    tables += claim.tables(finite) if len(finite) and hasattr(claim, "tables") else []
    numbers = ", ".join(f"{key} {value}" for key, value in made["versions"].items() if value)
    settings = ", ".join(f"{key} {value}" for key, value in made["settings"].items())
    to_folder = Path(os.path.relpath(folder, page)).as_posix()
    caption = getattr(claim, "CAPTION", "")
    figure = f"![{caption}]({to_folder}/{name}.svg)\n\n{caption} " if caption else ""
    return "\n\n".join(
        [
            *(markdown(cells(table)) for table in tables),
            f"{figure}Data: [{name}.csv]({to_folder}/{name}.csv).",
            f"Measured on {made['date']} at commit {short_commit(made['git'])} by "
            f"`{made['command']}` ({settings}; {numbers}).",
        ]
    )


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with titles, ``holds`` as last column, and no empty column of intervals."""
    table = table.astype(object).fillna("").rename(columns=SHOWN)
    if "holds" in table:
        table = table[[*table.columns.drop("holds"), "holds"]]
        table = table.drop(columns=INTERVAL) if table[INTERVAL].isin(["-", ""]).all() else table
    return table
