"""The simulated size, power and coverage of our tests, from benchmarks/results/inference.csv."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from norm_plugin.analysis.study import markdown


def inference_table(root: Path) -> str:
    """Markdown: a row a simulation, shares in percent."""
    table = pd.read_csv(root / "benchmarks" / "results" / "inference.csv").drop(columns="draws")
    shares = table.columns[3:]
    table[shares] = (100 * table[shares]).map("{:.1f}".format)
    shown = table.astype(str).rename(columns={"Welch interval": "Welch's interval"})
    return markdown(shown, ["---", *["---:"] * (len(shown.columns) - 1)])
