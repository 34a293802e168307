"""The page: one file that needs nothing else, with every number of the study in it."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from made_up_results import (
    folder_of,
    made_up,
    study_of_three,
    with_statistics,
    with_translations,
    write_corpus,
    write_failure,
)
from norm_plugin.analysis.report import least_loss, main, reached, scores_table
from norm_plugin.analysis.stats import compare_arms
from norm_plugin.analysis.study import read_study
from norm_plugin.commands.command_line import CommandError

SECTIONS = (
    "Scores against layernorm, pre",
    "The same models on other sentences",
    "Training",
    "Speed and size",
    "Statistics over training",
    "Failed and diverged runs",
    "Runs",
    "How this page was made",
)
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The elements of a page; refuses one that is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.cells, self.outside = [], [], [], []
        self.classes, self.loose = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        links = [values.get(key) or "" for key in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if link and not link.startswith("#")]
        if tag in ("table", "svg") and "wide" not in self.classes:
            self.loose.append(tag)
        if tag not in VOID:
            self.open.append(tag)
            self.classes.append(values.get("class"))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        self.classes.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


REFERENCES = [f"ein hund läuft {i} mal über die wiese ." for i in range(20)]
WORSE = [line.replace("hund", "affe") for line in REFERENCES]


def write_study(tmp_path):
    """Three settings with three seeds; seeds that diverged; statistics; two kept translations."""
    folders = study_of_three(tmp_path)
    curves = {"train": [], "valid": [{"epoch": 1, "updates": 30, "loss": 9.5}]}
    write_failure(folders[0], "far", 4, curves=curves)
    write_failure(folders[0], "gone", 1, reason="the loss is nan | or inf")
    for norm, lines in (("layernorm", REFERENCES), ("far", WORSE)):
        run = with_translations(made_up(norm, bleu=35.0), tmp_path, lines, REFERENCES)
        kept = with_statistics(run, tmp_path, g_mu=0.5, distance_mean=0.1)["kept"]
        folder_of(tmp_path, {**run, "kept": {**run["kept"], **kept}})
    return folders


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a report of three settings, and their study."""
    tmp_path = tmp_path_factory.mktemp("report")
    folders = write_study(tmp_path / "results")
    corpus = write_corpus(tmp_path / "corpus", REFERENCES)
    words = ["--out", str(tmp_path / "out"), "--title", "a <b> & c", "--data", str(corpus)]
    assert main([*map(str, folders), *words]) == 0
    return tmp_path / "out", read_study(folders)


def test_the_page_is_whole_and_needs_nothing_else(written):
    out, _ = written
    page = Page((out / "index.html").read_text())
    assert page.outside == []
    assert len(page.ids) == len(set(page.ids))
    assert "<script" not in (out / "index.html").read_text()


def test_what_is_wider_than_a_phone_scrolls_by_itself(written):
    out, _ = written
    text = (out / "index.html").read_text()
    page = Page(text)
    assert page.loose == []
    assert text.count("<svg") == len(list(out.glob("*.svg"))) > 5
    assert '<meta name="viewport" content="width=device-width' in text
    assert "color-scheme: light dark" in text


def test_the_sections_stand_in_order(written):
    out, _ = written
    headings = re.findall(r"<h2>(.*)</h2>", (out / "index.html").read_text())
    assert headings == list(SECTIONS)
    assert re.findall(r"^## (.*)", (out / "report.md").read_text(), re.M) == headings


def test_every_row_of_the_table_stands_in_both_forms(written):
    out, study = written
    page, markdown = Page((out / "index.html").read_text()), (out / "report.md").read_text()
    table = scores_table(study, compare_arms(study.runs, study.pairs))
    start, width = page.cells.index("setting"), len(table.columns)
    for place, expected in enumerate(table.itertuples(index=False), start=1):
        assert page.cells[start + place * width : start + (place + 1) * width] == list(expected)
        assert f"| {' | '.join(expected)} |" in markdown


def section(text, title):
    """A section of the Markdown."""
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_runs_that_diverged_are_in_tables_and_curves(written):
    out, _ = written
    markdown = (out / "report.md").read_text()
    assert "| far, pre | 1, 2, 3; 4 diverged |" in markdown
    assert "| gone, pre | 1 diverged | - |" in markdown
    failed = section(markdown, "Failed and diverged runs")
    assert "| far, pre | 4 | diverged | train | 40 of 60 updates | the loss is nan |" in failed
    assert r"the loss is nan \| or inf |" in failed  # a bar would begin another cell
    assert "| gone, pre | 0 of 1 | - | - | - |" in section(markdown, "Training")
    curves = list(csv.DictReader(io.StringIO((out / "valid-loss.csv").read_text())))
    (ended,) = [row for row in curves if row["runs"] == "4 diverged"]
    assert (ended["norm"], ended["updates"], ended["mean"]) == ("far", "30", "9.5")


def test_the_tests_on_translations_say_what_they_ask(written):
    out, _ = written
    found = section((out / "report.md").read_text(), "The same models on other sentences")
    assert "They say nothing about other seeds" in found
    rows = [line for line in found.splitlines() if line.startswith("| far, pre | 1 |")]
    assert rows[0].endswith("| worse |")
    assert "| alike, pre | 1 | - | - | - | - | no translations kept |" in found


def test_without_references_nothing_is_tested_on_them(tmp_path):
    folders = folder_of(tmp_path, made_up())
    main([*map(str, folders), "--out", str(tmp_path / "out")])
    assert "made without --data" in (tmp_path / "out" / "report.md").read_text()


def test_every_figure_names_its_command_commit_and_date(written):
    out, _ = written
    for text in ((out / "report.md").read_text(), (out / "index.html").read_text()):
        for path in out.glob("*.svg"):
            assert f"--figure {path.stem}\n# runs scored by 0123456789; drawn by " in text


@pytest.mark.parametrize("name", ["powernorm-2", "valid-loss"])
def test_one_figure_is_written_alone(written, tmp_path, name):
    """And equal results, written elsewhere, give an equal drawing."""
    out, _ = written
    folders = write_study(tmp_path / "results")
    words = [*map(str, folders), "--out", str(tmp_path / "one")]
    assert main([*words, "--figure", name]) == 0
    files = {path.name: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert files == {name: (out / name).read_text() for name in files}
    assert set(files) == {f"{name}.svg", f"{name}.csv"}


def test_a_figure_without_data_is_refused(tmp_path):
    (folder,) = folder_of(tmp_path, made_up())
    with pytest.raises(CommandError, match="there is no data for the figure outliers"):
        main([str(folder), "--out", str(tmp_path / "out"), "--figure", "outliers"])


def test_the_time_to_a_loss_that_was_asked_for(tmp_path):
    folders = folder_of(tmp_path, made_up())
    main([*map(str, folders), "--out", str(tmp_path / "out"), "--loss", "9.5"])
    text = (tmp_path / "out" / "report.md").read_text()
    training = section(text, "Training")
    assert "Time until the validation loss is 9.500 or less (as given)" in training
    # its training of 60 updates took two minutes, and its first loss was 9
    assert "| layernorm, pre | 1 of 1 | 30 | 1.0 | 9.000 |" in training
    assert "--loss 9.5" in section(text, "How this page was made")


def test_memory_is_unknown_unless_it_was_measured(tmp_path):
    folders = folder_of(tmp_path, made_up(), made_up("far", training__peak_memory=3 * 2**30))
    main([*map(str, folders), "--out", str(tmp_path / "out")])
    speed = section((tmp_path / "out" / "report.md").read_text(), "Speed and size")
    ends = [line.split("|")[-2].strip() for line in speed.splitlines() if ", pre |" in line]
    assert ends == ["unknown", "3,072"]


def test_the_title_is_text_and_no_markup(written):
    out, _ = written
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in (out / "index.html").read_text()
    assert (out / "report.md").read_text().startswith("# a &lt;b> & c\n")


def test_every_figure_is_a_drawing_with_its_data(written):
    out, study = written
    markdown = (out / "report.md").read_text()
    drawings = sorted(out.glob("*.svg"))
    assert {path.stem for path in drawings} == {path.stem for path in out.glob("*.csv")}
    for path in drawings:
        ElementTree.fromstring(path.read_text())
        assert f"]({path.name})" in markdown and f"`{path.stem}.csv`" in markdown
    scores = list(csv.DictReader(io.StringIO((out / "scores.csv").read_text())))
    assert sorted(float(row["score"]) for row in scores) == sorted(study.runs["score"])


def test_the_band_of_a_curve_spans_the_seeds(written):
    out, _ = written
    rows = list(csv.DictReader(io.StringIO((out / "train-loss.csv").read_text())))
    # losses of 9 and the seed, of seeds 1 to 3; the second point of every run holds no loss
    assert [row["updates"] for row in rows] == ["30"] * 3
    assert {(row["least"], row["mean"], row["most"]) for row in rows} == {("10", "11", "12")}


def test_curves_of_seeds_with_epochs_of_other_lengths_are_matched_by_epoch(tmp_path):
    """As on a corpus that is split anew for each seed."""
    runs = []
    for seed, length in ((1, 30), (2, 32)):
        curve = [{"epoch": e, "updates": e * length, "loss": 9.0 - e - seed} for e in (1, 2)]
        valid = [{"epoch": 1, "updates": 20, "loss": 9.0}, *curve]  # also within the first epoch
        runs.append(made_up(seed=seed, curves={"train": curve, "valid": valid}))
    (folder,) = folder_of(tmp_path, *runs)
    ends = [("31", "6.5", "6", "7"), ("62", "5.5", "5", "6")]
    for subset, expected in (("train", ends), ("valid", [("20", "9", "9", "9"), *ends])):
        main([str(folder), "--out", str(tmp_path / "out"), "--figure", f"{subset}-loss"])
        rows = csv.DictReader(io.StringIO((tmp_path / "out" / f"{subset}-loss.csv").read_text()))
        found = [tuple(row[key] for key in ("updates", "mean", "least", "most")) for row in rows]
        assert found == expected


def test_tables_have_the_digits_of_the_metric(tmp_path):
    scores = {"loss": {"score": 1.2345, "label": "bits a character"}}
    runs = [
        made_up(norm, seed, metric="bits", scores__loss=scores["loss"] | {"score": score})
        for norm, both in (("layernorm", (1.2345, 1.2385)), ("less", (1.2301, 1.2325)))
        for seed, score in enumerate(both, start=1)
    ]
    folders = folder_of(tmp_path, *runs)
    main([*map(str, folders), "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "report.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| less, pre | 1, 2 | 1.231 |")]
    assert "| 0.002 | 1.216 to 1.247 | -0.005 | -0.0" in row
    assert "The score is bits a character: bits a character. Lower is better." in page


def test_results_without_curves_say_so(tmp_path):
    folders = folder_of(tmp_path, made_up(curves=None))
    main([*map(str, folders), "--out", str(tmp_path / "out")])
    assert (
        "Losses over training are not in these results."
        in (tmp_path / "out" / "report.md").read_text()
    )
    assert not (tmp_path / "out" / "train-loss.svg").exists()


def curve(*losses):
    """One validation loss each 30 updates; None for an epoch whose loss was not finite."""
    points = [
        {"epoch": epoch, "updates": 30 * epoch} | ({} if loss is None else {"loss": loss})
        for epoch, loss in enumerate(losses, start=1)
    ]
    return {"train": [], "valid": points}


def test_when_a_loss_was_reached(tmp_path):
    """The training of each run has 60 updates in 120 seconds."""
    runs = (
        made_up(curves=curve(5.0, 4.0, 4.7)),
        made_up(seed=2, curves=curve(5.0, 4.1)),
        made_up("quick", curves=curve(4.1, 4.6)),
        made_up("quick", seed=2, curves=curve(None, 4.0)),
        made_up("slow", curves=curve(5.0, 4.2)),
        made_up("slow", seed=2, curves=curve(5.0, 4.05)),
        made_up("unknown", curves=None, training__seconds=None),
    )
    study = read_study(folder_of(tmp_path, *runs))
    assert least_loss(study) == 4.1  # every seed of the baseline reaches it
    table = reached(study, 4.1).set_index("arm")
    assert list(table["reaching"]) == [2, 2, 1, 0]
    assert list(table["updates"])[:3] == [60.0, 45.0, 60.0]  # of quick: 30 and 60
    assert list(table["seconds"])[:3] == [120.0, 90.0, 120.0]
    assert list(table["least"])[:3] == [4.0, 4.0, 4.05]
    assert table.loc["unknown, pre", ["updates", "seconds", "least"]].isna().all()


def test_a_length_that_is_not_known_gives_no_seconds(tmp_path):
    (folder,) = folder_of(tmp_path, made_up(training__seconds=None, curves=curve(4.0)))
    assert reached(read_study([folder]), 4.1)["seconds"].isna().all()
