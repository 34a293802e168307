"""The command that measures the claims, its files, and the page that it fills."""

from __future__ import annotations

import json
import math
import pickle
import re
import shutil
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from norm_lab.theory import CLAIMS
from norm_lab.theory.claim import Options, finite_cases
from norm_lab.theory.command import MADE, main, name_of, of_placement, read_made, read_measurements
from norm_plugin.io.command_line import CommandError

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results" / "theory"
MEASURED = list(read_made(RESULTS))
"""The claims with committed results."""
SMALL = ("--layers", "1,2", "--depth", "2", "--dim", "8", "--full-dim", "8", "--seeds", "2")


def run(folder, *argv):
    out, page = folder / "results" / "theory", folder / "docs" / "theory.md"
    for path in (out, page.parent):
        path.mkdir(parents=True, exist_ok=True)
    main([*SMALL, "--workers", "1", *argv, "--out", str(out), "--page", str(page)])
    return out, page


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder and the page of a small run."""
    return run(tmp_path_factory.mktemp("theory"), "--placement", "post,rezero")


def test_each_claim_has_its_files_and_its_section(measured):
    out, page = measured
    text = page.read_text(encoding="utf-8")
    made = read_made(out)
    of_checkpoints = {"trained-layers", "running-statistics"}
    assert set(made) == set(CLAIMS) - of_checkpoints
    files = {f"{name}.{ending}" for name in made for ending in ("csv", "svg")}
    assert {path.name for path in out.iterdir()} == {MADE, *files}
    titles = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert titles == [claim.text.split(".")[0] for name, claim in CLAIMS.items() if name in made]
    for name in made:
        assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
        assert f"](../results/theory/{name}.svg)" in text
        assert made[name]["command"].startswith("norm-plugin theory --layers 1,2 ")
        assert made[name]["date"] in text
        block = re.search(f"begin:theory/{name} -->(.*)<!-- end:theory/{name}", text, re.DOTALL)
        first, *more = re.findall(r"(?:^\|.*\n)+", block[1], flags=re.MULTILINE)
        header = first.splitlines()[0]
        assert "| stated | measured |" in header and header.endswith("| holds |")
        for table in (first, *more):
            # as many cells in each row as in its header: a bar within a cell is escaped
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    # rezero's encoder has no hidden state that a norm gets
    assert "| normal, means 0, 1, 3, 10 |" in text
    assert "hidden states, rezero" not in text


@pytest.fixture
def two_claims(measured, tmp_path):
    """The arguments that redraw a copy of the page from the files of two claims, and the page."""
    out, page = tmp_path / "results" / "theory", tmp_path / "docs" / "theory.md"
    for path in (out, page.parent):
        path.mkdir(parents=True)
    shutil.copy(measured[1], page)
    made = {name: read_made(measured[0])[name] for name in ("detached", "hidden-states")}
    for name in made:
        shutil.copy(measured[0] / f"{name}.csv", out)
    (out / MADE).write_text(json.dumps(made), encoding="utf-8")
    return ["--only-page", "--out", str(out), "--page", str(page)], page


def test_the_page_is_made_of_the_files_alone(two_claims):
    again, page = two_claims
    old = page.read_text(encoding="utf-8")
    main(again)
    assert page.read_text(encoding="utf-8") == old
    csv = Path(again[2]) / "hidden-states.csv"
    frame = pd.read_csv(csv)
    frame.assign(squared_length=2 + 0.001 * frame["seed"]).to_csv(csv, index=False)
    main(again)
    assert re.search(r"mean over layers \| 1.5 \| 2.00.*\| no \|", page.read_text("utf-8"))


def test_what_is_typed_around_the_blocks_stays(two_claims):
    again, page = two_claims
    begin, end = "<!-- begin:theory/detached -->", "<!-- end:theory/detached -->"
    page.write_text(f"# Mine\n\n{begin}\nold\n{end}\n\nbelow\n", encoding="utf-8")
    main(again)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Mine\n\n{begin}\n| norm | positions |")
    assert f"{end}\n\nbelow\n\n## Lengths of the hidden states" in text
    assert "\nold\n" not in text


def test_claims_that_were_measured_earlier_stay(tmp_path):
    run(tmp_path, "--placement", "pre", "--claims", "concentration")
    out, page = run(tmp_path, "--placement", "pre", "--claims", "jacobian")
    assert set(read_made(out)) == {"concentration", "jacobian"}
    assert page.read_text(encoding="utf-8").count("\n## ") == 2


def test_the_work_of_a_placement_can_be_sent_to_another_process():
    options = Options(("pre",), ("pre",), depth=2, dim=8, seeds=1)
    work = partial(of_placement, ("hidden-states",), options)
    assert pickle.loads(pickle.dumps(work))("pre") == work("pre")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (("--placement", "sideways"), "sideways"),
        (("--norm-type", "nonorm"), "nonorm"),
        (("--claims", "everything"), "choose from hidden-states"),
        (("--checkpoint", "missing.pt", "--claims", "trained-layers"), "cannot read missing.pt"),
        (("--page", "missing/page.md"), "create it first"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    with pytest.raises(CommandError, match=re.escape(error)):
        main([*SMALL, "--workers", "1", *argv])


@pytest.mark.parametrize(
    "argv", [("--layers", "0,2"), ("--layers", "4"), ("--seeds", "0"), ("--depth", "1")]
)
def test_a_number_that_makes_no_sense_is_refused(argv, capsys):
    with pytest.raises(SystemExit):
        main([*argv])
    assert f"argument {argv[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_case_that_is_not_finite_is_named_and_left_out(name, value):
    claim, frame, number = measurements(name)
    assert not finite_cases(claim, frame)[1]
    frame.loc[frame.index[-1], number] = value
    finite, (row,) = finite_cases(claim, frame)
    case = [column for column in claim.case if column in frame]
    some = frame[(frame[case] == frame[case].iloc[-1]).all(axis=1)]
    assert row["measured"] == f"not finite in 1 of {len(some)}"
    assert [row[column] for column in case] == list(frame[case].iloc[-1])
    assert len(finite) == len(frame) - len(some)


def measurements(name):
    """A claim, its committed measurements, and a column that has to be finite."""
    claim, frame = CLAIMS[name], read_measurements(name, RESULTS)
    numbers = [column for column in frame.select_dtypes("number") if column not in claim.may_lack]
    return claim, frame.astype({numbers[-1]: float}), numbers[-1]


def test_the_page_shows_a_case_that_is_not_finite(tmp_path):
    name = MEASURED[0]
    claim, frame, number = measurements(name)
    frame.loc[frame.index[-1], number] = math.nan
    case = [column for column in claim.case if column in frame]
    some = frame[(frame[case] == frame[case].iloc[-1]).all(axis=1)]
    made = {name: json.loads((RESULTS / MADE).read_text(encoding="utf-8"))[name]}
    (tmp_path / MADE).write_text(json.dumps(made), encoding="utf-8")
    page = ["--only-page", "--out", str(tmp_path), "--page", str(tmp_path / "page.md")]
    for shown in (frame, frame.assign(**{number: math.inf})):  # the second has no finite case
        shown.to_csv(tmp_path / f"{name}.csv", index=False)
        main(page)
        text = (tmp_path / "page.md").read_text(encoding="utf-8")
        assert f"| not finite in {1 if shown is frame else len(some)} of {len(some)} |" in text
        assert not re.search(r"\| *(nan|inf)\b", text)
        ElementTree.parse(tmp_path / f"{name}.svg")


def test_a_corpus_is_named_by_the_manifest_beside_it(tmp_path):
    data = tmp_path / "bin"
    data.mkdir()
    assert name_of(data) == "bin"
    manifest = {"corpus": "toy", "checksum": "0123456789abcdef0123"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert name_of(data) == "toy 0123456789abcdef"
