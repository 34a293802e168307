"""What each part of PowerNorm changes: differences of settings that differ mainly in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markdown_table import markdown
from norm_plugin.analysis.comparison import compare_pairs
from norm_plugin.analysis.rows import TABLE_HEADER, table_row
from norm_plugin.analysis.study import read_study

NOT_RUN = "not run"
TESTED = TABLE_HEADER.index("difference")  # this column and those after it
HEADER = ("part", "with it", "without: the baseline", *TABLE_HEADER[TESTED:])


@dataclass(frozen=True)
class Part:
    """A part of PowerNorm, and the norm of the results with it and without it."""

    name: str
    with_it: str
    without: str


PARTS = (
    Part("layer-scale", "powernorm", "powernorm-layer-scale-groups-0"),
    Part("psi of the batch for its mean and variance", "powernorm-v", "batchnorm"),
    Part("running psi for that of the batch", "powernorm", "powernorm-v"),
    Part("the released code for the paper", "powernorm-released", "powernorm"),
)


def parts_table(folder: Path) -> str:
    """Markdown: a row for each part, from the results in ``folder``; p is corrected over the rows.

    Raises CommandError for results that cannot be compared.
    """
    study = read_study([folder])
    placement = study.baseline.placement
    settings = {one.norm: one for one in study.settings if one.placement == placement}
    run = [part for part in PARTS if {part.with_it, part.without} <= settings.keys()]
    compared = compare_pairs([(settings[part.with_it], settings[part.without]) for part in run])
    tested = {part: table_row(row)[TESTED:] for part, row in zip(run, compared)}
    missing = (*["-"] * (len(TABLE_HEADER) - TESTED - 1), NOT_RUN)
    rows = [
        (part.name, f"`{part.with_it}`", f"`{part.without}`", *tested.get(part, missing))
        for part in PARTS
    ]
    return markdown([HEADER, *rows])
