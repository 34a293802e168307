"""The command that measures the claims, its files, and the page that is made from them."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest

from norm_plugin.analysis import initialization
from norm_plugin.analysis.initialization import main
from norm_plugin.analysis.theory import CLAIMS, claim
from norm_plugin.commands.command_line import CommandError
from norm_plugin.placements import PLACEMENTS

ROOT = Path(__file__).resolve().parents[2]
MEASURED = list(claim.read_made(ROOT / "results" / "theory"))
"""The claims with committed results."""

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
    made = json.loads((out / claim.MADE).read_text(encoding="utf-8"))
    assert set(made) == set(CLAIMS) - NEED_A_CHECKPOINT
    assert {path.name for path in out.iterdir()} == {
        claim.MADE,
        *(f"{name}.{ending}" for name in made for ending in ("csv", "svg")),
    }
    titles = re.findall(r"^## \d+\. (.*)$", text, flags=re.MULTILINE)
    assert titles == [one.text.split(".")[0] for name, one in CLAIMS.items() if name in made]
    for name in made:
        svg = ElementTree.parse(out / f"{name}.svg").getroot()
        assert svg.tag.endswith("svg")
        assert f"](../results/theory/{name}.svg)" in text
        assert made[name]["command"].startswith("norm-plugin theory --layers 1,2 ")
        assert made[name]["date"] in text


def test_each_section_says_what_is_claimed_and_whether_it_holds(measured):
    _, page = measured
    for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        assert section.index("**Claim**") < section.index("**Method.**") < section.index("\n| ")
        first, *more = re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
        header = first.splitlines()[0]
        assert "| stated | measured |" in header and header.endswith("| holds |")
        for table in (first, *more):
            # as many cells in each row as in its header: a bar within a cell is escaped
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_the_page_is_made_of_the_files_alone(measured):
    out, page = measured
    old = page.read_text(encoding="utf-8")
    main(["--only-page", "--out", str(out), "--page", str(page)])
    assert page.read_text(encoding="utf-8") == old
    csv = out / "hidden-states.csv"
    stored = csv.read_text(encoding="utf-8")
    try:
        frame = pd.read_csv(csv)
        frame.assign(squared_length=2 + 0.001 * frame["seed"]).to_csv(csv, index=False)
        main(["--only-page", "--out", str(out), "--page", str(page)])
        assert re.search(r"mean over layers \| 1.5 \| 2.00.*\| no \|", page.read_text("utf-8"))
    finally:
        csv.write_text(stored, encoding="utf-8")
        page.write_text(old, encoding="utf-8")


def test_what_is_typed_around_the_sections_stays(measured, tmp_path):
    out, _ = measured
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{claim.BEGIN}\nold\n{claim.END}\n\nbelow\n", encoding="utf-8")
    main(["--only-page", "--out", str(out), "--page", str(page)])
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Mine\n\n{claim.BEGIN}\n## 1. Lengths of the hidden states\n")
    assert text.endswith(f"{claim.END}\n\nbelow\n")
    assert "\nold\n" not in text
    page.write_text("# A page of something else\n", encoding="utf-8")
    with pytest.raises(CommandError, match="has no lines <!-- begin:theory -->"):
        main(["--only-page", "--out", str(out), "--page", str(page)])
    assert page.read_text(encoding="utf-8") == "# A page of something else\n"


def test_claims_that_were_measured_earlier_stay(tmp_path):
    run(tmp_path, "--placement", "pre", "--claims", "concentration")
    out, page = run(tmp_path, "--placement", "pre", "--claims", "jacobian")
    made = json.loads((out / claim.MADE).read_text(encoding="utf-8"))
    assert set(made) == {"concentration", "jacobian"}
    assert page.read_text(encoding="utf-8").count("\n## ") == 2


def test_a_placement_without_norms_has_a_page(tmp_path):
    """Its encoder has no hidden state that a norm gets."""
    _, page = run(tmp_path, "--placement", "rezero")
    text = page.read_text(encoding="utf-8")
    assert "| normal, means 0, 1, 3, 10 |" in text
    assert "hidden states, rezero" not in text


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
    monkeypatch.setattr(initialization, "ProcessPoolExecutor", PoolInThisProcess)
    what = ("--placement", "post,pre", "--claims", "hidden-states")
    one, two = (run(tmp_path / n, *what, "--workers", n)[0] for n in "12")
    name = "hidden-states.csv"
    assert (one / name).read_text(encoding="utf-8") == (two / name).read_text(encoding="utf-8")


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
        main(["--only-page", "--out", str(tmp_path), "--page", str(tmp_path / "page.md")])
    assert not any(tmp_path.iterdir())


def committed(name):
    return claim.read_measurements(CLAIMS[name], ROOT / "results" / "theory")


def required(one, frame):
    """The last column that every row has a number in."""
    return [column for column in frame.select_dtypes("number") if column not in one.may_lack][-1]


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_case_that_is_not_finite_is_named_and_left_out(name, value):
    one, frame = CLAIMS[name], committed(name)
    frame = frame.astype({required(one, frame): float})
    frame.loc[frame.index[-1], required(one, frame)] = value
    finite, (row,) = claim.finite_cases(one, frame)
    case = [column for column in one.case if column in frame]
    some = frame[(frame[case] == frame[case].iloc[-1]).all(axis=1)]
    assert row["measured"] == f"not finite in 1 of {len(some)}"
    assert [row[column] for column in case] == list(frame[case].iloc[-1])
    assert len(finite) == len(frame) - len(some)
    drawn = []
    claim.drawing(dataclasses.replace(one, plot=lambda kept, axes: drawn.append(kept)), frame)
    pd.testing.assert_frame_equal(drawn[0], finite)
    made = json.loads((ROOT / "results" / "theory" / claim.MADE).read_text(encoding="utf-8"))
    text = claim.section(1, one, frame, made[name], "results")
    assert f"| not finite in 1 of {len(some)} |" in text
    assert not re.search(r"\| *(nan|inf)\b", text)


@pytest.mark.parametrize("name", MEASURED)
def test_a_claim_without_a_finite_case_has_a_section_and_a_figure(name):
    one, frame = CLAIMS[name], committed(name)
    frame = frame.assign(**{required(one, frame): math.nan})
    finite, rows = claim.finite_cases(one, frame)
    assert finite.empty and rows
    ElementTree.fromstring(claim.drawing(one, frame))


def test_a_number_that_a_row_may_lack_is_not_a_failure():
    frame = committed("every-layer")
    assert frame["cross_sum"].isna().any()
    assert not claim.finite_cases(CLAIMS["every-layer"], frame)[1]


def test_the_committed_page_is_that_of_the_committed_results():
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    sections = claim.sections(CLAIMS, ROOT / "results" / "theory", "../results/theory")
    assert f"{claim.BEGIN}\n{sections}\n{claim.END}" in text, "run norm-plugin theory --only-page"


def test_the_committed_results_are_of_every_placement():
    assert set(committed("last-layer")["placement"]) == set(PLACEMENTS)
