"""The simulated size, power and coverage of our tests, from benchmarks/results/inference.csv."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from norm_plugin.analysis.tables import markdown

SHARES = {
    "paired t": "paired t",
    "sign flips": "sign flips",
    "Welch": "Welch",
    "divisions": "divisions",
    "equivalence": "equivalence",
    "paired interval": "paired interval",
    "Welch interval": "Welch's interval",
}


def inference_table(root: Path) -> str:
    """Markdown: a row a simulation, shares in percent."""
    table = pd.read_csv(root / "benchmarks" / "results" / "inference.csv")
    shown = table[["pairs", "difference", "seeds"]].astype(str)
    for column, title in SHARES.items():
        shown[title] = [f"{100 * share:.1f}" for share in table[column]]
    return markdown(shown, ["---", *["---:"] * (len(shown.columns) - 1)])
