"""Tables and figures for a paper."""

from __future__ import annotations

import shutil
import subprocess

import pandas as pd
import pytest

from made_up_results import study_of_three
from norm_lab.metrics import find_metric
from norm_lab.report.latex import LONGEST, escaped, latex_table
from norm_lab.report.page import main
from norm_lab.report.text import LEFT, formatted


def latex_of(rows):
    data = pd.DataFrame(rows, columns=["arm", "difference", "difference_low", "difference_high"])
    return latex_table("mine", "50 % of a_b. p < 1.", formatted(data, find_metric("bleu")), LEFT)


def test_a_table_has_booktabs_caption_and_note():
    text = latex_of([("a_b, pre", -1.5, -2.0, 1.0), ("c", None, None, None)])
    lines = [line.strip() for line in text.splitlines()]
    assert r"\caption{50 \% of a\_b. p \textless{} 1.}" in lines
    assert r"\begin{tabular}{lrr}" in lines and {r"\toprule", r"\bottomrule"} < set(lines)
    assert r"a\_b, pre & $-1.50$ & $-2.00$ to $+1.00$ \\" in lines
    assert r"c & -- & -- \\" in lines


@pytest.mark.parametrize(
    ("arm", "cell"),
    [
        ("-1\\input{x}", r"-1\textbackslash{}input\{x\}"),
        ("a -5% b", r"a -5\% b"),
        ("a\n\nb", "a  b"),
        ("-1.5e-05", "$-1.5e-05$"),
    ],
)
def test_what_begins_like_a_number_is_no_command(arm, cell):
    assert f"{cell} & $-1.50$" in latex_of([(arm, -1.5, -2.0, 1.0)])


def test_a_table_longer_than_a_page_breaks():
    text = latex_of([("a", 1.0, 0.0, 2.0)] * (LONGEST + 1))
    assert r"\begin{longtable}" in text and r"\begin{table}" not in text


def test_no_character_is_a_command():
    assert escaped("a\\b&c%d$e#f_g{h}i~j^k<l") == (
        r"a\textbackslash{}b\&c\%d\$e\#f\_g\{h\}i\textasciitilde{}j\textasciicircum{}k"
        r"\textless{}l"
    )


def test_the_report_is_a_document(tmp_path):
    """It compiles where LaTeX is installed."""
    folders = study_of_three(tmp_path / "results")
    out = tmp_path / "out"
    main([*map(str, folders), "--out", str(out), "--format", "latex", "--title", "a_b & c"])
    text = (out / "report.tex").read_text()
    for path in [*out.glob("*.tex"), *out.glob("*.pdf")]:
        assert path.name == "report.tex" or f"{{{path.name}}}" in text
    assert {path.stem for path in out.glob("*.pdf")} == {path.stem for path in out.glob("*.svg")}
    assert (out / "comparison-score.tex").exists()
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    result = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:]
