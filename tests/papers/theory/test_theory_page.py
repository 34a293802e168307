"""The command that measures the claims, its files, and the sections that it prints."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from norm_plugin.io.command_line import CommandError
from papers.theory import CLAIMS
from papers.theory.__main__ import main, report
from papers.theory.claim import Options, finite_cases
from papers.theory.page import MADE, block, corpus_name, draw, read_made, read_measurements

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "papers" / "data" / "theory"
MEASURED = list(read_made(RESULTS))
"""The claims with committed results."""
SMALL = {"layers": (1, 2), "depth": 2, "dim": 8, "full_dim": 8, "seeds": 2}
COMMAND = "python -m papers.theory"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder of a small run, and what it printed."""
    out, printed = tmp_path_factory.mktemp("theory") / "out", io.StringIO()
    with contextlib.redirect_stdout(printed):
        report(list(CLAIMS), Options(("post", "rezero"), ("post",), **SMALL), out, COMMAND)
    return out, printed.getvalue()


def test_each_claim_has_its_files_and_its_section(measured):
    out, text = measured
    made = read_made(out)
    assert set(made) == set(CLAIMS) - {"trained-layers", "running-statistics"}  # of checkpoints
    drawn = [name for name in made if hasattr(CLAIMS[name], "plot")]
    files = [*(f"{name}.csv" for name in made), *(f"{name}.svg" for name in drawn)]
    assert {path.name for path in out.iterdir()} == {MADE, *files} and len(drawn) == 3
    for name in drawn:
        assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    for name, section in zip((each for each in CLAIMS if each in made), sections, strict=True):
        assert section.startswith(CLAIMS[name].__doc__.split(".")[0])
        assert made[name]["command"] == COMMAND
        assert made[name]["date"] in section
        first, *more = re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
        header = first.splitlines()[0]
        assert "| stated | measured |" in header and header.endswith("| holds |")
        for table in (first, *more):
            # as many cells in each row as in its header: a bar within a cell is escaped
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    # rezero's encoder has no hidden state that a norm gets
    assert "| normal, means 0, 1, 3, 10 |" in text and "hidden states, rezero" not in text


def test_claims_that_were_measured_earlier_stay(tmp_path):
    for name in ("concentration", "jacobian"):
        report([name], Options(("pre",), **SMALL), tmp_path, COMMAND)
    assert set(read_made(tmp_path)) == {"concentration", "jacobian"}


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["everything"], "no claim everything; choose from hidden-states"),
        (["trained-layers", "--checkpoint", "missing.pt"], "cannot read missing.pt"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv, error, tmp_path):
    with pytest.raises(CommandError, match=re.escape(error)):
        main([*argv, "--out", str(tmp_path)])


def test_the_command_measures_a_claim(tmp_path, capsys):
    main(["jacobian", "--out", str(tmp_path)])
    assert read_made(tmp_path)["jacobian"]["command"].startswith(f"{COMMAND} jacobian")
    assert capsys.readouterr().out.startswith("## ")


@pytest.mark.parametrize("name", MEASURED)
def test_a_case_that_is_not_finite_is_named_and_left_out(name, tmp_path):
    claim, frame = CLAIMS[name], read_measurements(name, RESULTS)
    may_lack = getattr(claim, "MAY_LACK", ())
    *_, number = (each for each in frame.select_dtypes("number") if each not in may_lack)
    frame = frame.astype({number: float})
    assert not finite_cases(claim, frame)[1]
    frame.loc[frame.index[-1], number] = math.nan
    finite, (row,) = finite_cases(claim, frame)
    case = [column for column in claim.CASE if column in frame]
    some = frame[(frame[case] == frame[case].iloc[-1]).all(axis=1)]
    assert row["measured"] == f"not finite in 1 of {len(some)}"
    assert [row[column] for column in case] == list(frame[case].iloc[-1])
    assert len(finite) == len(frame) - len(some)
    # the section shows it, also if no case is finite
    (tmp_path / MADE).write_text((RESULTS / MADE).read_text("utf-8"), "utf-8")
    for shown, count in ((frame, 1), (frame.assign(**{number: math.inf}), len(some))):
        shown.to_csv(tmp_path / f"{name}.csv", index=False)
        draw(name, tmp_path)
        text = block(name, tmp_path, tmp_path)
        assert f"| not finite in {count} of {len(some)} |" in text
        assert not re.search(r"\| *(nan|inf)\b", text)


def test_a_corpus_is_named_by_the_manifest_beside_it(tmp_path):
    data = tmp_path / "bin"
    data.mkdir()
    assert corpus_name(data) == "bin"
    manifest = {"corpus": "toy", "checksum": "0123456789abcdef0123"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert corpus_name(data) == "toy 0123456789abcdef"
