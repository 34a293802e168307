"""What each part of PowerNorm changes: differences of arms that differ mainly in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from norm_plugin.analysis.stats import compare_arms
from norm_plugin.analysis.study import read_study
from norm_plugin.analysis.tables import COMPARED, formatted, markdown

NOT_RUN = "not run"
KEYS = ["with_it", "without"]


@dataclass(frozen=True)
class Part:
    """A part of PowerNorm, and the arms with it and without it."""

    name: str
    with_it: str
    without: str


PAPER_PARTS = (
    Part("layer-scale", "powernorm", "powernorm-layer-scale-groups-0"),
    Part("psi of the batch for its mean and variance", "powernorm-v", "batchnorm"),
    Part("running psi for that of the batch", "powernorm", "powernorm-v"),
)
PARTS = (
    *PAPER_PARTS,
    Part("the released code for the paper", "powernorm-released", "powernorm"),
)


def parts_table(folder: Path) -> str:
    """Markdown: a row for each part, from the results in ``folder``; p is corrected over the rows.

    Raises CommandError for results that cannot be compared.
    """
    study = read_study([folder])
    placement = study.runs.loc[study.runs["arm"] == study.baseline, "placement"].iloc[0]
    runs = study.runs[study.runs["placement"] == placement]
    runs = runs.assign(arm=runs["norm"])
    run = [part for part in PARTS if {part.with_it, part.without} <= set(runs["norm"])]
    table = pd.DataFrame({part.name: vars(part) for part in PARTS}).T
    tests = compare_arms(runs, [(part.with_it, part.without) for part in run])
    table = table.merge(tests, how="left", left_on=KEYS, right_on=["arm", "baseline"])
    table["verdict"] = table["verdict"].fillna(NOT_RUN)
    for key in KEYS:
        table[key] = "`" + table[key] + "`"
    text = formatted(table[["name", *KEYS, "verdict", *COMPARED]], study.metric)
    return markdown(text.rename(columns={"name": "part", "without": "without: the baseline"}))
