"""The page: one file that needs nothing else, with every number of the study in it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
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
from norm_lab.config.studies import read_study_file
from norm_lab.metrics import find_metric
from norm_lab.report.figure import write_files
from norm_lab.report.page import TEMPLATES, main
from norm_lab.report.tables import conclusions, least_loss, reached_table
from norm_lab.report.text import formatted, p_text
from norm_lab.results.publishing import publish
from norm_lab.study.study import SAME_SPEED, read_study
from norm_plugin.io.command_line import CommandError

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The elements of a page; refuses one that is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.cells, self.outside = [], [], [], []
        self.classes, self.loose, self.labels = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        links = [values.get(key) or "" for key in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if link and not link.startswith("#")]
        if tag == "table" and "wide" not in self.classes:
            self.loose.append(tag)
        if tag == "td":
            self.labels.append(values["data-label"])
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
        if {"td", "th"} & {*self.open[-2:]}:  # a verdict is in a span
            self.cells.append(data)


REFERENCES = [f"ein hund läuft {i} mal über die wiese ." for i in range(20)]
WORSE = [line.replace("hund", "affe") for line in REFERENCES]


def reported(folders, out, *flags):
    """The Markdown of a report on these folders, written to ``out``."""
    assert main([*map(str, folders), "--out", str(out), *map(str, flags)]) == 0
    return (out / "report.md").read_text()


def write_study(tmp_path):
    """Three settings with three seeds; seeds that diverged; statistics; two kept translations."""
    folders = study_of_three(tmp_path)
    losses = [{"epoch": e, "updates": 30 * e, "loss": 9.5 - e} for e in (1, 2)]
    curves = {"train": [], "valid": losses[1:]}
    write_failure(folders[0], "far", 4, curves=curves)
    write_failure(folders[0], "gone", 1, reason="the loss is nan | or inf")
    for norm, bleu, lines in (("layernorm", 35.0, REFERENCES), ("far", 38.0, WORSE)):
        run = with_translations(made_up(norm, bleu=bleu), lines, REFERENCES)
        folder_of(tmp_path, with_statistics(run, g_mu=0.5, distance_mean=0.1))
    return folders


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a report of three settings, and their study."""
    tmp_path = tmp_path_factory.mktemp("report")
    folders = write_study(tmp_path / "results")
    corpus = write_corpus(tmp_path / "corpus", REFERENCES)
    flags = ["--out", str(tmp_path / "out"), "--data", str(corpus)]
    assert main([*map(str, folders), *flags]) == 0
    return tmp_path / "out", read_study(folders)


def test_the_page_is_whole_and_needs_nothing_else_and_fits_a_phone(written):
    out, _ = written
    text = (out / "index.html").read_text()
    page = Page(text)
    assert page.outside == [] and text.count("<script") == 1  # the page's own, which sorts tables
    assert len(page.ids) == len(set(page.ids))
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert re.findall(r"^## (.*)", (out / "report.md").read_text(), re.M) == headings
    linked = re.findall('<a href="#(.*?)">(.*?)</a>', text)
    assert [title for _, title in linked] == headings and {*dict(linked)} <= {*page.ids}
    assert page.loose == []  # a table that is wider than the page scrolls by itself
    assert "" not in page.labels  # on a phone, each cell has the name of its column beside it
    assert text.count("<svg") == len(list(out.glob("*.svg"))) > 5
    assert text.count('<svg role="img" width="100%"') == text.count("<svg")
    assert '<meta name="viewport" content="width=device-width' in text
    assert "color-scheme: light dark" in text


SORTING = """
const heads = [{cellIndex: 0, parentNode: {}, closest: () => ({tBodies: [body]})}];
heads[0].parentNode.cells = heads;
const row = text => ({cells: [{textContent: text}]});
const body = {rows: %s.map(row), append(...rows) { this.rows = rows; }};
const document = {querySelectorAll: () => heads};
%s
const shown = () => body.rows.map(row => row.cells[0].textContent);
heads[0].onclick(); const first = shown(); heads[0].onclick();
console.log(JSON.stringify([first, shown()]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    "ascending",
    [
        ["-1.5 to +0.2", "<0.001", "0.02", "+0.1", "1,234", "-"],  # intervals by their lower ends
        ["adanorm", "layernorm", "rmsnorm"],
    ],
)
def test_a_click_sorts_a_column_and_another_the_other_way(ascending):
    (script,) = re.findall(
        "<script>(.*?)</script>", (TEMPLATES / "page.html.jinja").read_text(), re.DOTALL
    )
    code = SORTING % (json.dumps(ascending[1:] + ascending[:1]), script)
    printed = subprocess.run(["node", "-e", code], capture_output=True, check=True).stdout
    assert json.loads(printed) == [ascending, ascending[::-1]]


def test_a_report_reads_each_file_of_the_results_once(tmp_path, undrawn, monkeypatch):
    (folder,) = study_of_three(tmp_path / "results")
    publish(folder, folder)
    folder_of(tmp_path / "results", made_up("new"))
    read, read_bytes = Counter(), Path.read_bytes

    def counted(path):
        read[path.name] += 1
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    reported([folder], tmp_path / "out")
    assert read == Counter(path.name for path in folder.iterdir())


def rows_of(markdown, caption):
    """The rows of a table as dictionaries, by the beginning of its caption."""
    lines = markdown.split(f"\n{caption}")[1].split("\n\n")[1].splitlines()
    head, _, *body = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in body]


ARMS = "Every arm against its baseline: BLEU."


def test_the_verdict_comes_first(written):
    """Both forms begin with it, and have the number of seeds, not their list."""
    out, _ = written
    markdown = (out / "report.md").read_text()
    base, alike, far, gone = rows_of(markdown, ARMS)
    assert list(base)[:4] == ["arm", "verdict", "n", "no result"]
    assert (base["verdict"], alike["verdict"]) == ("baseline", "undecided")
    assert (far["arm"], far["verdict"], far["n"]) == ("far", "better", "3")
    assert far["difference"] == "+3.10" and far["no result"] == "1 diverged"
    assert (gone["verdict"], gone["n"], gone["mean"]) == ("no run has a result", "0", "-")
    page = Page((out / "index.html").read_text())
    start = page.cells.index("arm")
    for number, row in enumerate((base, alike, far, gone), start=1):
        first = start + number * len(base)
        assert page.cells[first : first + len(base)] == list(row.values())


def test_what_only_the_correction_leaves_undecided_is_called_so(tmp_path):
    scores = {"layernorm": (35, 35, 35), "one": (35.9, 36.1, 36.6), "two": (36.6, 35.9, 36.1)}
    runs = [made_up(norm, 1 + i, bleu[i]) for norm, bleu in scores.items() for i in range(3)]
    (one, two) = conclusions(read_study(folder_of(tmp_path, *runs)))  # p is 0.03 twice
    assert one.startswith("Between one and layernorm nothing is decided after correction: +1.20")
    assert "after correction" in two
    (only,) = conclusions(read_study(folder_of(tmp_path / "only", *runs[:6])))
    assert only.startswith("one is better than layernorm")


def test_the_numbers_of_all_comparisons_are_a_table(written):
    out, _ = written
    table = pd.read_csv(out / "comparisons.csv").set_index(["outcome", "arm"])
    assert set(table.index.get_level_values(0)) == {"score", "valid_loss", "train_loss"}
    far = table.loc[("score", "far")]
    assert far["difference"] == pytest.approx(3.1) and far["verdict"] == "better"
    assert [float(value) for value in far["by_seed"].split()] == pytest.approx([3.0, 3.1, 3.2])


def test_declared_comparisons_have_a_table_of_their_own(tmp_path, undrawn):
    folders = study_of_three(tmp_path)
    study = tmp_path / "mine.yaml"
    study.write_text(
        'experiment: toy\noverrides: ["seed=1,2,3"]\n'
        "primary:\n  - {arm: far, baseline: alike}\n"
        "  - {arm: alike, baseline: layernorm, test: equivalence, margin: 2 BLEU}\n"
    )
    text = reported(folders, tmp_path / "out", "--study", study)
    primary = rows_of(text, "Comparisons that the study declares, before the runs.")
    assert [row["baseline"] for row in primary] == ["alike", "layernorm"]
    assert primary[0]["verdict"] == "better" and primary[1]["margin"] == "2"
    assert "All others are\nexploratory" in text
    assert "two one-sided tests of equivalence within the margin" in text
    assert f"--study {study}" in text
    assert "not finished" not in text
    study.write_text(study.read_text().replace("2,3", "2,3,7,8"))
    text = reported(folders, tmp_path / "out", "--study", study)
    assert "not been run with every arm: 7, 8." in text


def test_own_runs_of_a_published_study_are_compared_with_it(tmp_path, undrawn, capsys):
    study = tmp_path / "studies" / "mine"
    (published,) = study_of_three(tmp_path / "first")
    publish(published, study)
    text = 'experiment: toy\noverrides: ["seed=1,2,3"]\nprimary: [{arm: far, baseline: alike}]\n'
    (study / "study.yaml").write_text(text)
    assert "the published runs of mine" in reported([study], tmp_path / "out")
    assert capsys.readouterr().out.startswith("These are the published runs of mine.")
    (own,) = study_of_three(tmp_path / "second")
    folder_of(tmp_path / "second", *(made_up("far", seed, 30 + seed) for seed in (1, 2, 3)))
    text = reported([own], tmp_path / "out", "--study", study)
    assert "These are the published" not in capsys.readouterr().out
    (declared,) = rows_of(text, "Each comparison, in both studies.")
    assert (declared["published"], declared["yours"]) == ("+3.13", "-3.03")
    assert declared["verdict"] == "differs"
    arms = {row["arm"]: row for row in rows_of(text, "Each arm, in both studies: BLEU.")}
    assert arms["far"]["verdict"] == "differs"
    assert arms["alike"]["verdict"] == "agrees within the interval"
    assert "6 of the 9 runs that both studies have" in text


def test_a_study_is_not_finished_while_a_declared_arm_lacks_a_seed(tmp_path):
    """A sweep that was stopped has the last seed of some arms; other arms do not matter."""
    (folder,) = study_of_three(tmp_path)
    study = tmp_path / "mine.yaml"
    text = "experiment: toy\n{}primary: [{{arm: far, baseline: layernorm}}]\n"
    study.write_text(text.format('overrides: ["seed=1,2,3"]\n'))
    (folder / "alike-seed3.json").unlink()
    assert read_study([folder], file=read_study_file(study)).missing_seeds == ()
    (folder / "far-seed3.json").unlink()
    assert read_study([folder], file=read_study_file(study)).missing_seeds == (3,)
    write_failure(folder, "far", 3)
    assert read_study([folder], file=read_study_file(study)).missing_seeds == ()
    (folder / "far-seed3.json").unlink()
    arms = "arms: [[norm=far, 'seed=1,2'], [norm=layernorm, 'seed=1,2,3']]\n"
    study.write_text(text.format(arms))
    assert read_study([folder], file=read_study_file(study)).missing_seeds == ()


def test_a_page_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "report").write_text("")
    with pytest.raises(CommandError, match="cannot create .*report: File exists; .* --out"):
        write_files({}, tmp_path / "report")


def test_arms_have_the_labels_of_the_study_file(tmp_path):
    """Comparisons name an arm by its id, and an arm that has not run yet may have a label."""
    folders = study_of_three(tmp_path)
    study = tmp_path / "mine.yaml"
    study.write_text(
        'experiment: toy\noverrides: ["seed=1,2,3"]\nprimary: [{arm: far, baseline: alike}]\n'
        "labels: {far: 'far away, post', alike: nearly alike, later: not yet run}\n"
    )
    text = reported(folders, tmp_path / "out", "--study", study)
    (primary,) = rows_of(text, "Comparisons that the study declares, before the runs.")
    assert (primary["arm"], primary["baseline"]) == ("far away, post", "nearly alike")
    runs = {(row["arm"], row["id"]) for row in rows_of(text, "Every run.")}
    unlabeled = ("layernorm", "layernorm")
    assert runs == {("far away, post", "far"), ("nearly alike", "alike"), unlabeled}
    assert "far away, post" in (tmp_path / "out" / "scores.svg").read_text()
    labeled = reported(folders, tmp_path / "out", "--study", study, "--label", "alike=not alike")
    assert "| not alike |" in labeled


def test_arms_for_which_no_number_of_seeds_is_enough_are_shown(tmp_path, undrawn):
    """The variance of the mean over random splits does not fall below a share of theirs."""
    splits = {"data__settings": {"split_seed": 1}, "scores__tokenized__sentences": 1000}
    runs = [
        made_up(norm, seed, bleu, **{**splits, "data__settings": {"split_seed": seed}})
        for norm, scores in (("layernorm", (35.0, 35.0, 35.0)), ("far", (30.0, 38.0, 45.0)))
        for seed, bleu in enumerate(scores, start=1)
    ]
    text = reported(folder_of(tmp_path / "results", *runs), tmp_path / "out")
    (row,) = rows_of(text, "Seeds per arm at which")
    assert (row["arm"], row["seeds, paired"]) == ("far", "none is enough")
    over_all = rows_of(text, "Seeds needed, over all arms.")
    assert over_all[-1]["value"] == "none is enough"


def section(text, title):
    """A section of the Markdown."""
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_runs_that_diverged_are_in_tables_and_curves(written):
    out, _ = written
    markdown = (out / "report.md").read_text()
    failed = section(markdown, "Failed and diverged runs")
    assert "| far | 4 | diverged | train | 40 of 60 updates | the loss is nan |" in failed
    assert r"the loss is nan \| or inf |" in failed  # a bar would begin another cell
    assert "| gone | 0 of 1 | not reached | unknown | unknown |" in section(markdown, "Training")
    assert "A cross marks the last loss of a run that failed or diverged." in markdown
    curves = pd.read_csv(out / "valid-loss.csv")
    (ended,) = curves[curves["state"] == "diverged"].to_dict("records")
    assert (ended["arm"], ended["updates"], ended["mean"]) == ("far", 60, 7.5)


def test_the_tests_on_translations_say_what_they_ask(written):
    out, _ = written
    text = section((out / "report.md").read_text(), "The same models on other sentences")
    assert "They do not generalize to other seeds" in text
    rows = {(row["arm"], row["seed"]): row for row in rows_of(text, "The same trained models")}
    assert rows["far", "1"]["verdict"] == "worse"
    assert rows["alike", "1"]["verdict"] == "no translations kept"


def test_every_figure_names_its_command_commit_and_date(written):
    out, _ = written
    text = (out / "index.html").read_text()
    for path in out.glob("*.svg"):
        assert f"--figure {path.stem}\n# runs scored at 0123456789; figure drawn at " in text


def test_every_seed_in_a_figure_says_its_value(written):
    out, _ = written
    for text in ((out / "index.html").read_text(), (out / "scores.svg").read_text()):
        assert "<title>seed 2: 38.40</title>" in text
    assert "<title>seed 2: +3.10</title>" in (out / "differences.svg").read_text()


def test_no_sentence_comes_twice(written):
    out, _ = written
    text = (out / "report.md").read_text().partition("\n## ")[2]
    lines = [line for line in text.splitlines() if not line.startswith(("|", "!", "<", "#"))]
    sentences = [each for line in lines for each in line.split(". ") if len(each) > 30]
    assert [each for each, count in Counter(sentences).items() if count > 1] == []


def test_the_page_of_a_smoke_run_tests_nothing(tmp_path, undrawn):
    folders = study_of_three(tmp_path)
    smoke = folders[0].rename(tmp_path / "toy_smoke")
    for path in smoke.glob("*.json"):
        path.write_text(path.read_text().replace('"toy_pre"', '"toy_smoke"'))
    text = reported([smoke], tmp_path / "out")
    assert "**Smoke run: the scores mean nothing.**" in text and "verdict" not in text.lower()
    assert not re.search(r"\bp\b|power|undecided", text)
    assert {path.stem for path in (tmp_path / "out").glob("*.csv")}.isdisjoint(
        {"differences", "scores", "comparisons"}
    )


@pytest.mark.parametrize("name", ["powernorm-2", "valid-loss"])
def test_one_figure_is_written_alone(written, tmp_path, name):
    """And equal results, written elsewhere, give an equal drawing."""
    out, _ = written
    folders = write_study(tmp_path / "results")
    argv = [*map(str, folders), "--out", str(tmp_path / "one")]
    assert main([*argv, "--figure", name]) == 0
    files = {path.name: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert files == {name: (out / name).read_text() for name in files}
    assert set(files) == {f"{name}.svg", f"{name}.csv"}


def test_a_figure_without_data_is_refused(tmp_path):
    (folder,) = folder_of(tmp_path, made_up())
    with pytest.raises(CommandError, match="have no data for the figure layers"):
        main([str(folder), "--out", str(tmp_path / "out"), "--figure", "layers"])


def test_the_time_to_a_loss_that_was_asked_for(tmp_path, undrawn):
    folders = folder_of(tmp_path, made_up())
    text = reported(folders, tmp_path / "out", "--loss", "9.5")
    training = section(text, "Training")
    assert "When the validation loss was 9.500 or lower for the first time" in training
    # its training of 60 updates took two minutes, and its first loss was 9
    assert "| layernorm | 1 of 1 | 30 | 1.0 | 9.000 |" in training
    assert "--loss 9.5" in section(text, "How this page was made")


@pytest.mark.parametrize(
    ("speeds", "spread", "note"),
    [
        ([0.5, 0.5 * SAME_SPEED * 0.99], SAME_SPEED * 0.99, ""),
        ([0.5, 0.5 * SAME_SPEED * 1.01], SAME_SPEED * 1.01, "Two seeds of one arm differ"),
        ([0.5], None, "No arm has two seeds"),
        ([0.5, None], None, "No arm has two seeds"),
    ],
)
def test_times_are_drawn_if_two_seeds_show_that_they_can_be_compared(
    speeds, spread, note, tmp_path, undrawn
):
    runs = [
        made_up(seed=seed, training__updates_per_second=speed)
        for seed, speed in enumerate(speeds, start=1)
    ]
    (folder,) = folder_of(tmp_path / "results", *runs)
    assert read_study([folder]).speed_spread == (spread and pytest.approx(spread))
    text = section(reported([folder], tmp_path / "out"), "Speed and size")
    assert (tmp_path / "out" / "speed.svg").exists() == (not note)
    assert note in text and ("not drawn" in text) == bool(note)
    assert "| arm | score |" in text and "\n| layernorm | " in text  # the names of other tables


HOSTILE = (
    "![x](http://a.b/c) `y` <script>z</script> & $q$ $\\frac{$ inserted-999-here 5 *i* a_b _j_"
)


def test_names_are_text_in_every_format(tmp_path):
    """Check the names of a corpus, a version, a label, a title and a folder."""
    name = "a\n```\n<script>alert(1)</script>"
    runs = [
        made_up(
            norm, seed, 30.0 + seed, data__corpus=HOSTILE, versions={"torch": f"{HOSTILE}\n# h"}
        )
        for norm in ("layernorm", "rmsnorm")
        for seed in (1, 2)
    ]
    folder_of(tmp_path / name, *runs)
    folder, out = tmp_path / name / "toy_pre", tmp_path / "out"
    label = f"rmsnorm={HOSTILE.replace('=', '')}"
    argv = [str(folder), "--out", str(out), "--title", HOSTILE, "--label", label, "--format=latex"]
    assert main(argv) == 0
    page, markdown = (out / "index.html").read_text(), (out / "report.md").read_text()
    assert page.count("<script") == 1 and "<img" not in page and "http-equiv" not in page
    assert page.count("inserted-999-here") > 3 and "<em>" not in page and "<h1>h" not in page
    shown = "!\\[x\\](http://a.b/c) \\`y\\` &lt;script>z&lt;/script> & $q$ $\\\\frac{$ "
    shown += "inserted-999-here 5 \\*i\\* a_b \\_j\\_"
    assert markdown.startswith(f"# {shown}\n") and f"| {shown} |" in markdown
    assert f"Data: {shown}" in markdown and f"torch {shown} # h" in markdown
    fence = section(markdown, "How this page was made")
    assert "toy_pre" in fence and fence.count("\n```") == 2
    table = (out / "runs.tex").read_text()
    assert "![x](http://a.b/c)" in table and "\\$q\\$" in table and "\\frac" not in table
    assert "$q$" in next(out.glob("valid*.svg")).read_text()


@pytest.mark.parametrize(
    ("name", "figure"),
    [("index.html", []), ("scores.csv", []), ("scores.csv", ["--figure", "scores"])],
)
@pytest.mark.usefixtures("undrawn")
def test_no_file_of_the_users_is_replaced(name, figure, tmp_path):
    (folder,) = folder_of(tmp_path / "results", *(made_up(seed=seed) for seed in (1, 2)))
    command, mine = [str(folder), "--out", str(tmp_path), *figure], tmp_path / name
    mine.write_text("<h1>Mine</h1>")
    with pytest.raises(CommandError, match=f"{name} is not of norm-plugin report; choose another"):
        main(command)
    assert mine.read_text() == "<h1>Mine</h1>"
    mine.unlink()
    for _ in range(2):  # its own is
        assert main(command) == 0


def test_every_figure_is_a_drawing_with_its_data(written):
    out, study = written
    markdown = (out / "report.md").read_text()
    drawings = sorted(out.glob("*.svg"))
    data = {path.stem for path in out.glob("*.csv")} - {"comparisons"}
    assert {path.stem for path in drawings} == data
    for path in drawings:
        ElementTree.fromstring(path.read_text())
        assert f"]({path.name})" in markdown
    scores = pd.read_csv(out / "scores.csv")
    assert sorted(scores["score"]) == sorted(study.runs["score"])
    arms = {row["arm"] for row in rows_of(markdown, "Every run.")}
    for name in ("scores", "differences", "valid-loss", "speed", "comparisons"):
        if (out / f"{name}.csv").exists():
            assert set(pd.read_csv(out / f"{name}.csv")["arm"]) <= arms, name


def test_a_table_has_the_digits_of_its_outcome():
    columns = ["arm", "outcome", "mean", "low", "high"]
    rows = [("a", "score", 35.126, 35.0, 35.25), ("b", "valid_loss", 2.12345, None, None)]
    text = formatted(pd.DataFrame(rows, columns=columns), find_metric("bleu")).set_index("arm")
    assert list(text["mean"]) == ["35.13", "2.123"]
    assert list(text["95 % interval"]) == ["35.00 to 35.25", "-"]
    losses = formatted(pd.DataFrame({"mean": [2.12345]}), find_metric("bleu"), "valid_loss")
    assert list(losses["mean"]) == ["2.123"]


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
    table = reached_table(study, 4.1).set_index("arm")
    assert list(table["reaching"]) == ["2 of 2", "2 of 2", "1 of 2", "0 of 1"]
    assert list(table["updates"])[:3] == [60.0, 45.0, 60.0]  # of quick: 30 and 60
    assert list(table["minutes"])[:3] == [2.0, 1.5, 2.0]
    assert list(table["least"])[:3] == [4.0, 4.0, 4.05]
    assert table.loc["unknown, pre", ["updates", "minutes", "least"]].isna().all()


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (None, "-"),
        (1.0, "1.000"),
        (0.0512, "0.051"),
        (0.0501, "0.0501"),
        (0.05, "0.05"),
        (0.0499, "0.0499"),
        (0.0005, "0.001"),
        (0.0002, "<0.001"),
    ],
)
def test_p_shows_on_which_side_of_the_level_it_is(p, text):
    assert p_text(p) == text


def without_values(result, kind):
    """The result of a run whose log lacks the losses of validations, or whose score is NaN."""
    if kind == "score":
        result["scores"]["tokenized"]["score"] = math.nan
    else:
        result["curves"]["valid"] = []
    return result


@pytest.mark.parametrize("kind", ["valid-loss", "score"])
@pytest.mark.parametrize("arm", ["far", "layernorm"])
def test_an_arm_without_values_of_an_outcome_is_left_out_of_its_table(kind, arm, tmp_path, undrawn):
    for path in study_of_three(tmp_path)[0].glob("*.json"):
        result = json.loads(path.read_text())
        if result["norm"] == arm:
            path.write_text(json.dumps(without_values(result, kind)))
    page = reported([tmp_path / "toy_pre"], tmp_path / "report")
    title = {"score": "BLEU", "valid-loss": "least validation loss, bits per token"}
    with_values = {"alike", "far", "layernorm"} - {arm}
    for outcome, text in title.items():
        caption = f"Every arm against its baseline: {text}."
        rows = {row["arm"]: row for row in rows_of(page, caption)}
        note = (
            "Runs without a value of this outcome are excluded, and arms without any are neither "
        )
        note += f"described nor tested: {arm} (3 of 3 seeds)."
        after = page.partition(caption)[2].partition("Every arm against")[0]
        assert (note in after) == (outcome == kind)
        assert set(rows) == (with_values if outcome == kind else with_values | {arm})
        if outcome == kind and arm == "layernorm":
            assert {row["verdict"] for row in rows.values()} == {"not tested"}


def test_a_seed_without_a_score_is_left_out(tmp_path, undrawn):
    path = study_of_three(tmp_path)[0] / "far-seed2.json"
    path.write_text(json.dumps(without_values(json.loads(path.read_text()), "score")))
    publish(path.parent, path.parent)  # a score that is no number is omitted
    page = reported([path.parent], tmp_path / "report")
    (row,) = (r for r in rows_of(page, "Every arm against its baseline: BLEU") if "far" in r["arm"])
    assert row["n"] == "2"
    assert "far (1 of 3 seeds)" in page


@pytest.mark.usefixtures("undrawn")
def test_the_folder_of_a_study_is_reported_in_itself(tmp_path):
    (folder, *_) = study_of_three(tmp_path)
    declared = (
        "experiment: toy\noverrides: ['seed=1,2,3']\nprimary: [{arm: far, baseline: layernorm}]\n"
        "superseded: better\nsetting: toy, two epochs\n"
        "tune: {grid: {optimization.lr: [0.1, 0.2]}, seeds: [4]}\n"
    )
    (folder / "study.yaml").write_text(declared)
    page = folder / "README.md"
    page.write_text("# My own notes\n")
    with pytest.raises(CommandError, match=r"README\.md is not of norm-plugin report"):
        main([str(folder), "--out", str(folder)])
    assert page.read_text() == "# My own notes\n"
    page.unlink()
    for _ in range(2):  # its own page is replaced
        assert main([str(folder), "--out", str(folder)]) == 0
    assert "the study declared them before the runs" in page.read_text()
    assert "Superseded by the study `better`." in page.read_text()
    result = page.read_text().partition("## Result")[2].partition("- far is better")[0]
    assert "Setting: toy, two epochs." in result
    assert "The study tunes optimization.lr for each arm, nothing else." in result
    assert not (folder / "report.md").exists() and list(folder.glob("*.svg"))
