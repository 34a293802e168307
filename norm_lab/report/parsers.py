"""The options of the commands that read results, whose modules import pandas and torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from norm_lab.paths import WORK
from norm_plugin.io.command_line import Parser, existing

HTML, LATEX = "html", "latex"
PUBLISHED = "runs.jsonl"


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.rpartition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form A=B")
    return old, new


def results(text: str) -> str:
    """Return a folder of results or a study as it is given: the argparse type of RESULTS."""
    from norm_lab.config.studies import results_folder

    folder = results_folder(text)
    if (folder / PUBLISHED).is_file() or any(folder.glob("*-seed*.json")):
        return text
    why = "has no results" if folder.exists() else "does not exist"
    raise argparse.ArgumentTypeError(f"{folder} {why}; a finished run writes to {WORK}/results/")


def record(text: str) -> Path:
    """Return the path of a file or of a published run: the argparse type of FILE."""
    path = Path(text)
    return path if (path.parent / PUBLISHED).is_file() else existing(text)


def report_parser() -> Parser:
    """Return the parser of ``report``."""
    parser = Parser(
        prog="norm-plugin report",
        description="Write a page that compares runs: OUT/index.html, OUT/report.md and\n"
        "OUT/comparisons.csv.",
        example="norm-plugin report work/results/toy --out work/report",
    )
    add = parser.add_argument
    text = "folder of an experiment's results, or the name of a study"
    add("folders", nargs="+", type=results, metavar="RESULTS", help=text)
    add("--out", type=Path, default=Path("report"), help="default: %(default)s")
    text = "the norm or arm that the others are compared with (default: layernorm; "
    text += "unless that is one arm, the first baseline that the study declares)"
    add("--baseline", metavar="NORM", help=text)
    text = "the study that declares the primary comparisons, by its name, folder or file (default: "
    add("--study", metavar="STUDY", help=f"{text}RESULTS, if it is the folder of a study)")
    text = "a key in which runs may differ, such as optimization.lr, or a section: compare each "
    text += "arm at its best value, and show all values. If repeated, arms differ in the values of "
    add("--vary", action="append", default=[], metavar="KEY", help=f"{text}all keys")
    text = "rename the arm A to B; may be repeated"
    add("--label", action="append", type=_renaming, default=[], metavar="A=B", help=text)
    add("--title", help="title of the page (default: the names of the experiments)")
    text = "the prepared corpus, such as work/data/multi30k-2000, to also test differences of "
    add("--data", type=Path, metavar="DIR", help=f"{text}single runs on their translations")
    text = "show the time to this validation loss (default: the lowest one of the baseline)"
    add("--loss", type=float, help=text)
    text = "latex also writes LaTeX tables, PDF figures and report.tex (default: %(default)s)"
    add("--format", choices=(HTML, LATEX), default=HTML, help=text)
    add("--figure", metavar="NAME", help="write only this figure and its data")
    return parser


def score_table_parser() -> Parser:
    """Return the parser of ``score-table``."""
    parser = Parser(
        prog="norm-plugin score-table",
        description="Print the table of an experiment in Markdown.",
        example="norm-plugin score-table work/results/toy",
    )
    text = "folder of an experiment's results, or the name of a study"
    parser.add_argument("folder", type=results, metavar="DIR", help=text)
    return parser


def records_parser() -> Parser:
    """Return the parser of ``records``."""
    parser = Parser(
        prog="norm-plugin records",
        description="Read the statistics over training that --norm-record has written, or those\n"
        "that a result stores. Without --figure, the file is described.",
        example="""norm-plugin records work/RUN/checkpoints/norm_record.jsonl.gz
        norm-plugin records FILE --figure powernorm-2 --sites encoder.layers.0
        norm-plugin records work/results/toy/powernorm-seed1.json""",
    )
    text = "a file that --norm-record has written, or the result of a run"
    parser.add_argument("file", type=record, metavar="FILE", help=text)
    parser.add_argument("--figure", metavar="NAME", help="print the figure's data as CSV")
    text = "prefixes of the paths of norms or layers (default: all)"
    parser.add_argument("--sites", nargs="+", default=[], metavar="PATH", help=text)
    return parser
