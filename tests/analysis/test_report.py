"""The page: one file that needs nothing else, with every number of the study in it."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from made_up_results import folder_of, made_up, study_of_three
from norm_plugin.analysis.comparison import compare_all
from norm_plugin.analysis.report import TABLE_HEADER, main, table_row
from norm_plugin.analysis.study import read_study

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The elements of a page; refuses one that is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.cells, self.outside = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        links = [values.get(key) or "" for key in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if link and not link.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a report of three settings, and their study."""
    tmp_path = tmp_path_factory.mktemp("report")
    folders = study_of_three(tmp_path / "results")
    assert main([*map(str, folders), "--out", str(tmp_path / "out"), "--title", "a <b> & c"]) == 0
    return tmp_path / "out", read_study(folders)


def test_the_page_is_whole_and_needs_nothing_else(written):
    out, _ = written
    page = Page((out / "index.html").read_text())
    assert page.outside == []
    assert len(page.ids) == len(set(page.ids))
    assert "<script" not in (out / "index.html").read_text()


def test_every_row_of_the_table_stands_in_both_forms(written):
    out, study = written
    page, markdown = Page((out / "index.html").read_text()), (out / "report.md").read_text()
    start = page.cells.index(TABLE_HEADER[0])
    width = len(TABLE_HEADER)
    for place, row in enumerate(compare_all(study), start=1):
        expected = list(table_row(row))
        assert page.cells[start + place * width : start + (place + 1) * width] == expected
        assert f"| {' | '.join(expected)} |" in markdown


def test_the_title_is_text_and_no_markup(written):
    out, _ = written
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in (out / "index.html").read_text()
    assert (out / "report.md").read_text().startswith("# a <b> & c\n")


def test_every_figure_is_a_drawing_with_its_data(written):
    out, study = written
    markdown = (out / "report.md").read_text()
    drawings = sorted(out.glob("*.svg"))
    assert {path.stem for path in drawings} == {path.stem for path in out.glob("*.csv")}
    for path in drawings:
        ElementTree.fromstring(path.read_text())
        assert f"]({path.name})" in markdown and f"]({path.stem}.csv)" in markdown
    scores = list(csv.DictReader(io.StringIO((out / "scores.csv").read_text())))
    assert sorted(float(row["score"]) for row in scores) == sorted(
        score for setting in study.settings for score in setting.scores
    )


def test_the_band_of_a_curve_spans_the_seeds(written):
    out, _ = written
    rows = list(csv.DictReader(io.StringIO((out / "train-loss.csv").read_text())))
    # losses of 9 and the seed, of seeds 1 to 3; the second point of every run holds no loss
    assert [row["updates"] for row in rows] == ["30"] * 3
    assert {(row["least"], row["mean"], row["most"]) for row in rows} == {("10.0", "11.0", "12.0")}


def test_results_without_curves_say_so(tmp_path):
    folders = folder_of(tmp_path, made_up(curves=None))
    main([*map(str, folders), "--out", str(tmp_path / "out")])
    assert (
        "Losses over training are not in these results."
        in (tmp_path / "out" / "report.md").read_text()
    )
    assert not (tmp_path / "out" / "train-loss.svg").exists()


def test_equal_results_give_equal_files(written, tmp_path):
    out, _ = written
    folders = study_of_three(tmp_path / "results")
    main([*map(str, folders), "--out", str(tmp_path / "out"), "--title", "a <b> & c"])
    for path in out.glob("*.svg"):
        assert (tmp_path / "out" / path.name).read_text() == path.read_text()
