"""The tables of what norms cost, from the files of the benchmarks."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from norm_plugin.commands.command_line import CommandError
from norm_plugin.norms import NORM_TYPES
from speed_tables import RESULTS, speed_table

ORIGIN = {
    "device": "Some CPU",
    "vector": "AVX2",
    "threads": "2",
    "torch": "2.13.0",
    "python": "3.11.7",
    "commit": "c0ffee1",
    "date": "2026-01-01",
}


def layer(norm, provider, ratio, channels=512, options="", direction="forward+backward", **origin):
    place = {"rows": "4096", "channels": str(channels), "direction": direction}
    kind = {"norm": norm, "options": options, "provider": provider}
    return {**ORIGIN, **origin, **place, **kind, "ratio": str(ratio)}


def update(norm, ratio, kernels="auto", peak="1.004", options=""):
    quartiles = {"ratio_p25": str(ratio - 0.01), "ratio_p50": str(ratio), "ratio_p75": "1.1"}
    memory = {"peak_mib": "3000.0", "peak_ratio": peak}
    kind = {"norm": norm, "options": options, "kernels": kernels, "tokens": "4096"}
    return {**ORIGIN, **kind, **quartiles, "updates_per_s": "0.2", **memory}


def write(root: Path, name: str, rows: list[dict[str, str]]) -> None:
    folder = root / RESULTS
    folder.mkdir(parents=True)
    with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def cells(table: str, norm: str) -> list[list[str]]:
    lines = [line for line in table.split("\n") if line.startswith(f"| `{norm}` |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("name", ["layers", "training"])
def test_nothing_measured(tmp_path, name):
    text = speed_table(name, tmp_path)
    assert text == f"CPU: not measured; `python benchmarks/{name}.py` does it. GPU: not measured."


def test_the_newest_row_of_each_kind_counts(tmp_path):
    rows = [
        layer("adanorm", "fused", 9.0, date="2025-01-01"),
        layer("adanorm", "fused", 0.7),
        layer("adanorm", "fused", 0.814, channels=1024),
        layer("adanorm", "plain", 3.0),
        layer("adanorm", "fused", 1.5, options="variant=released"),
        layer("adanorm", "fused", 99.0, channels=64, date="2025-01-01"),
        layer("adanorm", "fused", 99.0, direction="forward", date="2025-01-01"),
    ]
    write(tmp_path, "layers", rows)
    text = speed_table("layers", tmp_path)
    assert cells(text, "adanorm") == [
        ["`adanorm`", "", "0.70 / 0.81", "—", "3.00 / not measured", "—"],
        ["`adanorm`", "`variant=released`", "1.50 / not measured", "—", "—", "—"],
    ]
    assert "2025" not in text and "99" not in text


def test_a_table_says_where_it_comes_from(tmp_path):
    write(tmp_path, "layers", [layer("dyt", "fused", 1.0), layer("none", "plain", 1, commit="b+")])
    lines = speed_table("layers", tmp_path).split("\n")
    machine = "CPU: Some CPU (AVX2), 2 threads, torch 2.13.0, Python 3.11.7"
    assert lines[-3:] == [
        f"{machine}, commit c0ffee1, 2026-01-01.",
        f"{machine}, commit b+, 2026-01-01.",
        "GPU: not measured.",
    ]
    assert "at 4,096 x 512 / 4,096 x 1,024" in lines[-4]


@pytest.mark.parametrize("name", NORM_TYPES)
def test_every_norm_has_a_row(tmp_path, name):
    write(tmp_path, "layers", [layer("dyt", "fused", 1.0)])
    ((_, _, *rest),) = cells(speed_table("layers", tmp_path), name)
    assert name == "dyt" or rest == ["not measured"] * 4


def test_layernorm_shows_no_figure_of_a_compiler_that_finds_nothing_to_compile(tmp_path):
    rows = [layer(name, one, 0.9) for name in ("layernorm", "dyt") for one in ("plain", "compile")]
    write(tmp_path, "layers", rows)
    text = speed_table("layers", tmp_path)
    ((_, _, _, compiled, plain, _),) = cells(text, "layernorm")
    assert compiled == "—" and plain.startswith("0.90")
    assert cells(text, "dyt")[0][3].startswith("0.90")


def test_training(tmp_path):
    rows = [update("dyt", 0.5), update("dyt", 1.014), update("dyt", 0.7, "off", peak="")]
    write(tmp_path, "training", rows)
    text = speed_table("training", tmp_path)
    assert cells(text, "dyt") == [
        ["`dyt`", "", "auto", "1.01", "1.00 to 1.10", "1.00"],
        ["`dyt`", "", "off", "0.7", "0.7 to 1.1", "not measured"],
    ]
    assert cells(text, "none") == [["`none`", "", "", *["not measured"] * 3]]


def test_a_file_of_something_else(tmp_path):
    write(tmp_path, "layers", [{"norm": "dyt", "ratio": "1"}])
    with pytest.raises(CommandError, match=r"layers\.csv has no column options, provider"):
        speed_table("layers", tmp_path)
    with pytest.raises(CommandError, match="no table 'speed/other'; there are layers, training"):
        speed_table("other", tmp_path)
