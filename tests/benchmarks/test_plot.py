"""benchmarks/plot.py: the slopes it finds, and the picture where matplotlib is there."""

from __future__ import annotations

import csv
import sys

import pytest

import plot
from measuring.records import SAME_LAYER


def timed(rows, ms, channels=512, provider="fused", norm="adanorm", direction="forward+backward"):
    place = {"rows": str(rows), "channels": str(channels), "direction": direction}
    kind = {"norm": norm, "options": "", "provider": provider}
    return {**kind, **place, "p50_ms": str(ms), "ratio": "0.5"}


GROWTH = [timed(rows, 0.001 * rows) for rows in (256, 1024, 4096, 16384, 65536)]
GROWTH += [timed(rows, 5.0 * 2**k, provider="torch") for k, rows in enumerate((1024, 4096, 16384))]


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    monkeypatch.setattr(plot, "quiet", lambda: None)  # the loggers are those of all tests


@pytest.fixture
def measured(tmp_path):
    def write(rows):
        path = tmp_path / "layers.csv"
        with open(path, "w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, [*SAME_LAYER, "p50_ms", "ratio"])
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write


def slopes(rows):
    found = plot.series(rows, "rows", "channels", 512)
    return {name: plot.slope(points) for name, points in found.items()}


def test_slopes():
    found = slopes(GROWTH)
    assert found["adanorm, fused"] == pytest.approx(1.0)
    # twice the time for four times the rows
    assert found["adanorm, torch"] == pytest.approx(0.5)


def test_small_batches_other_widths_and_old_rows_do_not_count():
    noise = [
        timed(256, 1000.0),
        timed(4096, 9.0, channels=64),
        timed(4096, 9.0, direction="forward"),
    ]
    old = [timed(4096, 1e9)]
    assert slopes([*old, *GROWTH, *noise])["adanorm, fused"] == pytest.approx(1.0)
    assert slopes([timed(1024, 1.0), timed(256, 1.0)]) == {"adanorm, fused": None}


def test_misses():
    assert list(plot.misses({"a": 0.8, "b": 1.4, "c": None})) == []
    assert list(plot.misses({"a": 0.79, "b": 2.0})) == [
        "a: slope 0.79, wanted from 0.8 to 1.4",
        "b: slope 2.00, wanted from 0.8 to 1.4",
    ]
    (line,) = plot.misses({"a": None})
    assert line == "no growth measured; run python benchmarks/layers.py --growth"


def test_the_command(measured, capsys):
    assert plot.main(["--input", str(measured(GROWTH)), "--check"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["adanorm,", "fused", "time", "~", "rows^1.00"]
    assert out[-2] == "missed: adanorm, torch: slope 0.50, wanted from 0.8 to 1.4"
    assert plot.main(["--input", str(measured(GROWTH[:5])), "--check"]) == 0


def test_every_line_of_the_picture_looks_different():
    names = [f"{norm}, fused" for norm in range(40)]
    styles = plot.styles_of(names)
    assert [style["label"] for style in styles.values()] == names
    assert len({(style["color"], style["linestyle"]) for style in styles.values()}) == len(names)


def test_the_picture_has_the_fused_forms_and_layernorm_of_torch():
    rows = [*GROWTH, *(timed(n, 1.0, provider="torch", norm="layernorm") for n in (256, 1024))]
    rows += [timed(256, 1.0, norm="dyt")]  # one size is no line
    panel = ("rows", "channels", 512)
    assert list(plot.lines_of(rows, None, *panel)) == ["adanorm, fused", "layernorm, torch"]
    assert list(plot.lines_of(rows, ["dyt"], *panel)) == ["layernorm, torch"]


def test_without_matplotlib(measured, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = tmp_path / "growth.png"
    with pytest.raises(plot.CommandError, match="no matplotlib, which draws; pip install"):
        plot.main(["--input", str(measured(GROWTH)), "--output", str(output)])
    assert not output.exists()


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(measured, tmp_path, ending):
    pytest.importorskip("matplotlib", reason="matplotlib is no requirement; it draws the picture")
    output = tmp_path / f"growth.{ending}"
    rows = [*GROWTH, *(timed(4096, c / 100, channels=c) for c in (64, 256))]
    assert plot.main(["--input", str(measured(rows)), "--output", str(output)]) == 0
    start = output.read_bytes()[:100]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in start
