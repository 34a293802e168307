"""The command that measures the claims, its files, and the page that is made from them."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from norm_plugin.analysis.initialization import main
from norm_plugin.analysis.theory import claims as all_claims
from norm_plugin.analysis.theory import measuring
from norm_plugin.analysis.theory import page as pages
from norm_plugin.analysis.theory.claims import CLAIMS
from norm_plugin.analysis.theory.finite import CASE, is_finite
from norm_plugin.analysis.theory.rows import from_csv, group, to_csv
from norm_plugin.commands.command_line import CommandError
from norm_plugin.placements import PLACEMENTS

ROOT = Path(__file__).resolve().parents[2]

NEED_A_CHECKPOINT = {"trained-layers"}
SMALL = ("--layers", "1,2", "--depth", "2", "--dim", "8", "--full-dim", "8", "--seeds", "2")


def run(folder, *words):
    out, page = folder / "results" / "theory", folder / "docs" / "theory.md"
    for one in (out, page.parent):
        one.mkdir(parents=True, exist_ok=True)
    main([*SMALL, "--workers", "1", *words, "--out", str(out), "--page", str(page)])
    return out, page


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder and the page of a small run, with the lines that it has printed."""
    return run(tmp_path_factory.mktemp("theory"), "--placement", "post,rezero")


def test_each_claim_has_its_files_and_its_section(measured):
    out, page = measured
    text = page.read_text(encoding="utf-8")
    made = json.loads((out / pages.MADE).read_text(encoding="utf-8"))
    assert set(made) == set(CLAIMS) - NEED_A_CHECKPOINT
    assert {path.name for path in out.iterdir()} == {
        pages.MADE,
        *(f"{name}.{ending}" for name in made for ending in ("csv", "svg")),
    }
    titles = re.findall(r"^## \d+\. (.*)$", text, flags=re.MULTILINE)
    assert titles == [claim.title for name, claim in CLAIMS.items() if name in made]
    for name in made:
        svg = ElementTree.parse(out / f"{name}.svg").getroot()
        assert svg.tag.endswith("svg")
        assert f"](../results/theory/{name}.svg)" in text
        assert made[name]["command"].startswith("python -m norm_plugin.analysis.initialization")
        assert made[name]["date"] in text


def test_each_section_says_what_is_claimed_and_what_was_found(measured):
    _, page = measured
    for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        claimed, method, found = (
            section.index(f"**{word}") for word in ("Claim", "Method", "Found")
        )
        assert claimed < method < found
        assert re.search(r"^- \S", section[found:], flags=re.MULTILINE)
        rows = [line for line in section.splitlines() if line.startswith("|")]
        # as many cells in each row as in its header: a bar within a cell is escaped
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 2


def test_the_page_is_made_of_the_files_alone(measured):
    out, page = measured
    assert pages.page(out, page) == page.read_text(encoding="utf-8")
    changed = out / "hidden-states.csv"
    old = changed.read_text(encoding="utf-8")
    try:
        rows = [{**row, "squared_length": 2 + 0.001 * row["seed"]} for row in from_csv(old)]
        changed.write_text(to_csv(rows), encoding="utf-8")
        assert "does not contain 1.5" in pages.page(out, page)
    finally:
        changed.write_text(old, encoding="utf-8")


def test_claims_that_were_measured_earlier_stay(tmp_path):
    run(tmp_path, "--placement", "pre", "--claims", "concentration")
    out, page = run(tmp_path, "--placement", "pre", "--claims", "jacobian")
    made = json.loads((out / pages.MADE).read_text(encoding="utf-8"))
    assert set(made) == {"concentration", "jacobian"}
    assert page.read_text(encoding="utf-8").count("\n## ") == 2


def test_a_placement_without_norms_has_a_page(tmp_path):
    """Its encoder has no hidden state that a norm gets."""
    _, page = run(tmp_path, "--placement", "rezero")
    text = page.read_text(encoding="utf-8")
    assert "on normal vectors of variance 1 it is" in text
    assert "hidden states with |x| from" not in text


class PoolInThisProcess:
    """Runs what a pool of processes would, and pickles it as that does."""

    def __init__(self, workers, context, initializer, initargs):
        assert workers > 1
        pickle.dumps((initializer, initargs))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def map(self, work, items):
        return [pickle.loads(pickle.dumps(work))(item) for item in items]


def test_several_processes_measure_what_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "ProcessPoolExecutor", PoolInThisProcess)
    what = ("--placement", "post,pre", "--claims", "hidden-states")
    one, two = (run(tmp_path / n, *what, "--workers", n)[0] for n in "12")
    name = "hidden-states.csv"
    assert (one / name).read_text(encoding="utf-8") == (two / name).read_text(encoding="utf-8")


def test_rows_are_read_as_they_were_written():
    rows = [{"a": 1, "b": 0.125, "c": "post", "d": None}, {"a": 2, "b": -3e-9, "c": "x", "d": None}]
    assert from_csv(to_csv(rows)) == rows


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--placement", "sideways"), "sideways"),
        (("--norm-type", "nonorm"), "nonorm"),
        (("--claims", "everything"), "choose from hidden-states"),
        (("--layers", "4"), "needs two numbers"),
        (("--claims", "trained-layers"), "--checkpoint"),
        (
            ("--checkpoint", "missing.pt", "--claims", "trained-layers"),
            "cannot read missing.pt: No such file",
        ),
        (("--data", "missing"), "missing is not a folder"),
        (("--page", "missing/page.md"), "create it first"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    with pytest.raises(CommandError, match=re.escape(error)):
        main([*SMALL, "--workers", "1", *words])


@pytest.mark.parametrize(
    "words", [("--layers", "0,2"), ("--layers", "two"), ("--seeds", "0"), ("--depth", "1")]
)
def test_a_number_that_makes_no_sense_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        main([*words])
    assert words[1] in capsys.readouterr().err


def test_an_empty_folder_has_no_page(tmp_path):
    with pytest.raises(CommandError, match="no measured claim"):
        pages.page(tmp_path, tmp_path / "page.md")


def test_every_module_with_a_claim_is_on_the_page():
    folder = Path(all_claims.__file__).parent
    with_claim = [p.stem for p in folder.glob("*.py") if "\nCLAIM = " in p.read_text("utf-8")]
    assert len(with_claim) == len(CLAIMS)


def committed(name):
    return from_csv((ROOT / "results" / "theory" / f"{name}.csv").read_text(encoding="utf-8"))


def with_nan(rows, number):
    """Rows whose row ``number`` has NaN in its last column, which is measured in each claim."""
    return [{**row, list(row)[-1]: math.nan} if row is rows[number] else row for row in rows]


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("place", [0, -1])
def test_a_case_that_is_not_finite_is_named_and_left_out(name, place):
    rows = committed(name)
    columns = [column for column in CASE if column in rows[0]]
    case, some = list(group(rows, *columns).items())[place]
    found = pages.findings(CLAIMS[name], with_nan(rows, rows.index(some[0])))
    assert f": 1 of {len(some)} measurements are not finite" in found.sentences[0]
    assert all(str(value) in found.sentences[0] for value in case if value is not None)
    assert not re.search(r"\b(nan|inf)\b", f"{found.sentences[1:]}{found.tables}")
    for table in found.tables:
        assert {len(row) for row in table.rows} <= {len(table.header)}


def test_an_infinite_number_is_not_finite():
    assert not is_finite({"placement": "post", "gradient": math.inf})
    assert is_finite({"placement": "post", "gradient": 1.0, "cross_sum": None})


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_without_a_finite_case_has_a_section_and_a_figure(name):
    rows = [with_nan([row], 0)[0] for row in committed(name)]
    found = pages.findings(CLAIMS[name], rows)
    assert found.sentences and not found.tables
    ElementTree.fromstring(pages.drawing(CLAIMS[name], rows))


@pytest.mark.parametrize("name", CLAIMS)
def test_what_is_not_finite_is_not_drawn(name):
    rows = committed(name)
    drawn = []
    claim = dataclasses.replace(CLAIMS[name], plot=lambda kept, axes: drawn.extend(kept))
    pages.drawing(claim, with_nan(rows, 0))
    assert 0 < len(drawn) < len(rows)
    assert all(map(is_finite, drawn))


def test_the_committed_page_is_that_of_the_committed_results():
    out, page = ROOT / "results" / "theory", ROOT / "docs" / "theory.md"
    assert pages.page(out, page) == page.read_text(encoding="utf-8"), (
        "run python -m norm_plugin.analysis.initialization"
    )


def test_the_committed_results_are_of_every_placement():
    rows = from_csv((ROOT / "results" / "theory" / "last-layer.csv").read_text(encoding="utf-8"))
    assert {row["placement"] for row in rows} == set(PLACEMENTS)
