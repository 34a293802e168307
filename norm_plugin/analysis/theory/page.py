"""The measurements of all claims in a folder, and the page that is made from them.

Each claim that was measured has ``<name>.csv`` and ``<name>.svg`` in the folder, and an entry in
``made.json`` that says how it was measured. The page is made from these files alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_plugin.analysis.figures import INK_ON_PAPER, draw
from norm_plugin.analysis.theory.claim import Claim, Findings, Row, Table
from norm_plugin.analysis.theory.claims import CLAIMS
from norm_plugin.analysis.theory.finite import finite_cases
from norm_plugin.analysis.theory.rows import from_csv, to_csv
from norm_plugin.commands.command_line import CommandError, read_json, read_text, write_text
from norm_plugin.experiments.provenance import short_commit

MADE = "made.json"
INTRODUCTION = """\
# The theory, measured

This page compares claims of three papers with measurements: Xiong et al. 2020, "On Layer
Normalization in the Transformer Architecture"; Xu et al. 2019 (AdaNorm); and Shen et al. 2020
(PowerNorm). The claims are given in our words. Where a claim follows from the formulas of a norm,
it was derived again.

Every number and every verdict is computed from the CSV files in [{folder}]({to_folder}).
The first command measures all claims anew, except that on trained models, which needs checkpoints:
its section has its command. The second only writes this page from the files.

```bash
python data-prep/multi30k.py --out work/data/multi30k-10000
python -m norm_plugin.analysis.initialization --data work/data/multi30k-10000/bin
python -m norm_plugin.analysis.initialization --only-page
```

The models are made of the same layers, placements and norms as those that users train. None of them
has been trained unless the section says so.

- **Simplified setting**: that of Xiong et al. One stack of L layers with one head. All matrices are
  d x d and Xavier normal, W_Q = W_K = 0, there are no biases, and the inputs are normal with
  variance 1. The loss is the cross-entropy of a softmax over random labels. A placement that brings
  an initialization of its own keeps it.
- **Full model**: fairseq's Transformer as `norm_transformer` builds it, with L encoder and L
  decoder layers, a feed-forward network of 4 d, sinusoidal positions and the initial weights of its
  placement.
- **Tokens**: `random` are uniform and independent, `real` are batches of a corpus.
- An interval in parentheses is Student's 95 % interval of the mean over seeds. `post` and `pre`
  have all the seeds that a section names, the other placements half of them.
"""


def store(claim: Claim, rows: list[Row], made: dict[str, Any], folder: Path) -> None:
    """Write the measurements of a claim; its older ones are replaced.

    Args:
        made: how it was measured, as ``made.json`` has it.
    """
    write_text(folder / f"{claim.name}.csv", to_csv(rows))
    entries = read_made(folder)
    entries[claim.name] = made
    write_text(folder / MADE, json.dumps(entries, indent=2, sort_keys=True) + "\n")


def drawing(claim: Claim, rows: list[Row]) -> str:
    """The figure of a claim, of its finite cases, as the text of an SVG file."""
    kept, _ = finite_cases(rows)

    def plot(axes: Any) -> None:
        if kept:
            claim.plot(kept, axes)

    try:
        svg = draw(plot, claim.height, claim.name)
    except ImportError as error:
        raise CommandError(
            f"the figures need {error.name}; pip install 'norm_plugin[analysis]'"
        ) from error
    return svg.replace("currentColor", INK_ON_PAPER) + "\n"


def redraw(folder: Path) -> None:
    """Draw the figures of all measured claims in ``folder`` anew."""
    made = read_made(folder)
    for name, claim in CLAIMS.items():
        if name in made:
            rows = from_csv(read_text(folder / f"{name}.csv"))
            write_text(folder / f"{name}.svg", drawing(claim, rows))


def read_made(folder: Path) -> dict[str, Any]:
    """How each claim in ``folder`` was measured, by its name."""
    path = folder / MADE
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    return found


@dataclass(frozen=True)
class Measured:
    """A claim with what its files say."""

    claim: Claim
    findings: Findings
    made: dict[str, Any]


def read_measured(folder: Path) -> list[Measured]:
    """The claims that were measured into ``folder``, in the order of the page.

    Raises:
        CommandError: there are none, or a file is missing.
    """
    made = read_made(folder)
    found = [
        Measured(claim, findings(claim, from_csv(read_text(folder / f"{name}.csv"))), made[name])
        for name, claim in CLAIMS.items()
        if name in made
    ]
    if not found:
        raise CommandError(f"{folder} holds no measured claim; measure some first")
    return found


def findings(claim: Claim, rows: list[Row]) -> Findings:
    """What a claim finds in its finite cases, after a sentence on each case that is not."""
    kept, sentences = finite_cases(rows)
    found = claim.find(kept) if kept else Findings([])
    return Findings([*sentences, *found.sentences], found.tables)


def page(folder: Path, at: Path) -> str:
    """The page on the claims in ``folder``, to be written to the file ``at``."""
    to_folder = Path(os.path.relpath(folder, at.parent)).as_posix()
    lines = [INTRODUCTION.format(folder=to_folder.removeprefix("../"), to_folder=to_folder)]
    for number, one in enumerate(read_measured(folder), start=1):
        lines += section(number, one, to_folder)
    return "\n".join(lines)


def section(number: int, one: Measured, to_folder: str) -> Iterator[str]:
    """The lines of a claim: what is claimed, how it was measured, and what was found."""
    claim = one.claim
    yield f"## {number}. {claim.title}\n"
    yield f"**Claim** ({claim.source}). {claim.statement[0]}\n"
    yield from (f"{text}\n" for text in claim.statement[1:])
    yield f"**Method.** {claim.method[0]}\n"
    yield from (f"{text}\n" for text in claim.method[1:])
    yield "**Found.**\n"
    yield from (f"- {sentence}" for sentence in one.findings.sentences)
    yield ""
    for table in one.findings.tables:
        yield from table_lines(table)
    yield f"![{claim.caption}]({to_folder}/{claim.name}.svg)\n"
    yield f"{claim.caption} Data: [{claim.name}.csv]({to_folder}/{claim.name}.csv).\n"
    yield origin(one.made) + "\n"


def table_lines(table: Table) -> Iterator[str]:
    """The table in Markdown, and an empty line."""
    yield _cells(table.header)
    yield _cells(("---",) * len(table.header))
    yield from map(_cells, table.rows)
    yield ""


def _cells(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def origin(made: dict[str, Any]) -> str:
    """The command, commit, date and versions behind the measurements of a claim."""
    commit = short_commit(made["git"])
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items() if number)
    settings = ", ".join(f"{name} {value}" for name, value in made["settings"].items())
    return (
        f"Measured on {made['date']} at commit {commit} by `{made['command']}` "
        f"({settings}; {versions})."
    )
