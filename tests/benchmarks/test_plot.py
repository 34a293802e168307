"""benchmarks/plot.py: its slopes, and its picture if matplotlib is installed."""

from __future__ import annotations

import pandas as pd
import pytest

import plot
from measuring.records import append


def timed(rows, ms, channels=512, provider="fused", norm="adanorm", direction="forward+backward"):
    kind = {"norm": norm, "options": "", "provider": provider}
    place = {"rows": rows, "channels": channels, "direction": direction}
    return {**kind, **place, "p50_ms": ms, "ratio": 0.5}


GROWTH = [timed(rows, 0.001 * rows) for rows in (256, 1024, 4096, 16384, 65536)]
GROWTH += [timed(rows, 5.0 * 2**k, provider="torch") for k, rows in enumerate((1024, 4096, 16384))]


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    monkeypatch.setattr(plot, "quiet", lambda: None)  # the loggers are those of all tests


@pytest.fixture
def measured(tmp_path):
    def write(rows):
        append(tmp_path / "layers.csv", rows)
        return str(tmp_path / "layers.csv")

    return write


def slopes(rows):
    of_all = plot.series(pd.DataFrame(rows), "rows", "channels", 512)
    return {name: plot.slope(points) for name, points in of_all.items()}


def test_slopes():
    # adanorm's time is that of its rows; torch's doubles where the rows are four times as many
    noise = [timed(4096, 9.0, channels=64), timed(4096, 9.0, direction="forward")]
    assert slopes([*GROWTH, *noise]) == {
        "adanorm, fused": pytest.approx(1.0),
        "adanorm, torch": pytest.approx(0.5),
    }
    assert slopes([timed(1024, 1.0), timed(256, 1.0)]) == {"adanorm, fused": None}


def test_the_command(measured, capsys):
    path = measured([timed(4096, 1e9), *GROWTH])  # the newest counts
    assert plot.main(["--input", path, "--check"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["adanorm,", "fused", "time", "~", "rows^1.00"]
    assert out[-2] == "missed: adanorm, torch: slope 0.50, wanted from 0.8 to 1.4"


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(measured, tmp_path, ending):
    pytest.importorskip("matplotlib", reason="matplotlib is no requirement; it draws the picture")
    output = tmp_path / f"growth.{ending}"
    path = measured([*GROWTH, *(timed(4096, c / 100, channels=c) for c in (64, 256))])
    assert plot.main(["--input", path, "--output", str(output)]) == 0
    start = output.read_bytes()[:100]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in start
