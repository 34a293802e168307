"""A report as LaTeX: its tables with booktabs, its figures as PDF, and a document with both.

Each table is a file for ``\\input`` in a paper, which needs ``booktabs``, and ``longtable`` for
tables of more than a page. ``report.tex`` is a complete document.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import pandas as pd

from norm_lab.report.figure import Figure

LONGEST = 40
"""The number of rows that fit on a page."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **dict.fromkeys("\r\n", " "),
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
SIGNED = re.compile(r"[+-][0-9][0-9.,]*(e[+-]?[0-9]+)?", re.ASCII)
DOCUMENT = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{booktabs,graphicx,longtable}
\begin{document}
\section*{%s}
%s
\end{document}
"""


def escaped(text: str) -> str:
    """Return text with LaTeX's special characters escaped."""
    return "".join(SPECIAL.get(character, character) for character in text)


def latex_table(name: str, caption: str, table: pd.DataFrame, left: Collection[str]) -> str:
    """Return a table of text with its caption; the columns ``left`` are aligned to the left."""
    text = table.map(_cell).rename(columns=escaped)
    columns = "".join("l" if title in left else "r" for title in table)
    options = {"index": False, "caption": escaped(caption), "label": f"tab:{name}"}
    if len(table) > LONGEST:
        long: str = text.to_latex(longtable=True, column_format=columns, **options)
        return "{\\small\n" + long + "}\n"
    body: str = text.to_latex(column_format=columns, position="htbp", **options)
    return body.replace("\\begin{tabular}", "\\centering\\small\n\\begin{tabular}", 1)


def _cell(text: str) -> str:
    """Return the text of a cell; signed numbers are in math mode, so that a minus is no hyphen."""
    if text == "-":
        return "--"
    words = text.split(" ")
    return " ".join(f"${word}$" if SIGNED.fullmatch(word) else escaped(word) for word in words)


def latex_figure(figure: Figure) -> str:
    """Return a figure environment that includes the PDF, with the caption."""
    return "\n".join(
        [
            r"\begin{figure}[htbp]",
            r"\centering",
            rf"\includegraphics[width=0.6\textwidth]{{{figure.name}.pdf}}",
            rf"\caption{{{escaped(f'{figure.title} {figure.note}'.strip())}}}",
            rf"\label{{fig:{figure.name}}}",
            r"\end{figure}",
        ]
    )


def document(title: str, tables: Iterable[str], figures: Iterable[Figure]) -> str:
    """Return ``report.tex``, which includes the files of these tables and the figures."""
    parts = [rf"\input{{{name}.tex}}" for name in tables]
    parts += [latex_figure(figure) for figure in figures]
    return DOCUMENT % (escaped(title), "\n\\clearpage\n".join(parts))
