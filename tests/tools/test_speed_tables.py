"""The tables of what norms cost, from the files of the benchmarks."""

from __future__ import annotations

import pandas as pd
import pytest

from norm_plugin.io.command_line import CommandError
from speed_tables import MISSING, RESULTS, speed_table

CPU = {"device": "Some CPU", "vector": "AVX2", "threads": 2, "torch": "2.13.0"}
CPU |= {"python": "3.11.7", "commit": "c0ffee1", "date": "2026-01-01"}
LINE = "Some CPU (AVX2), threads: 2, torch 2.13.0, Python 3.11.7, commit c0ffee1, 2026-01-01."


@pytest.fixture
def table(tmp_path):
    """A table of rows, by the name of their file."""

    def run(name, **files):
        (tmp_path / RESULTS).mkdir(parents=True, exist_ok=True)
        for stem, rows in files.items():
            pd.DataFrame(rows).to_csv(tmp_path / RESULTS / f"{stem}.csv", index=False)
        return speed_table(name, tmp_path)

    return run


def cells(table, norm):
    lines = [line for line in table.split("\n") if line.startswith(f"| `{norm}` |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    "name, script",
    [
        ("layers", "layers"),
        ("training", "training"),
        ("host", "host"),
        ("gpu_layers", "gpu"),
        ("gpu_updates", "gpu"),
    ],
)
def test_nothing_measured(table, name, script):
    assert table(name) == f"Not measured; `python benchmarks/{script}.py` does it."


def test_layers_on_a_gpu(table):
    def row(norm, provider, host, dtype="float32", rows=16384):
        numbers = {"host_ratio": host, "device_ratio": 0.75, "kernels": 3, "copy_share": 0.666}
        place = {"provider": provider, "dtype": dtype, "rows": rows, "channels": 1024}
        return {**CPU, "norm": norm, "options": "", **place, **numbers}

    rows = [
        row("dyt", "fused", 9.0),
        row("dyt", "fused", 1.5),
        row("torch.nn.RMSNorm", "library", 2),
    ]
    rows += [row("dyt", "fused", 1.25, dtype="bfloat16"), row("derf", "fused", 1, rows=64)]
    text = table("gpu_layers", gpu_layers=rows)
    one = ["0.75", "3", "67%"]
    assert cells(text, "dyt") == [["`dyt`", "", "`fused`", "1.50", *one, "1.25", *one]]
    missing = ["not measured"] * 4
    assert cells(text, "torch.nn.RMSNorm")[0][2:] == ["`library`", "2.00", *one, *missing]
    assert "| bfloat16 host |" in text and "derf" not in text and text.endswith(LINE)


def test_the_host_of_a_gpu(table):
    def row(norm, optimizer, ratio, launches=3):
        numbers = {"launches": launches, "host_ratio": 1.25}
        quartiles = {"ratio_p25": ratio - 0.1, "ratio_p50": ratio, "ratio_p75": ratio + 0.1}
        return {**CPU, "norm": norm, "options": "", "optimizer": optimizer, **numbers, **quartiles}

    rows = [row("dyt", "adam", 0.5), row("dyt", "adam", 0.9), row("dyt", "adam_foreach", 1)]
    text = table("host", host=[*rows, row("none", "adam", 1.1, launches=1)])
    both = ["0.90 (0.80 to 1.00)", "1.00 (0.90 to 1.10)"]
    assert cells(text, "dyt") == [["`dyt`", "", "3", "1.25", *both]]
    assert cells(text, "none") == [["`none`", "", "1", "1.25", "1.10 (1.00 to 1.20)", MISSING]]
    assert cells(text, "mabn") == [["`mabn`", "", *[MISSING] * 4]]
    assert text.endswith(LINE)


def test_a_file_of_something_else(table):
    with pytest.raises(CommandError, match=r"layers\.csv has no column options, provider"):
        table("layers", layers=[{"norm": "dyt", "ratio": "1"}])
