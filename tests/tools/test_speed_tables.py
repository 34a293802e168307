"""The tables of what norms cost, from the files of the benchmarks."""

from __future__ import annotations

import pandas as pd
import pytest

from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import NORM_TYPES
from speed_tables import RESULTS, speed_table

CPU = {"device": "Some CPU", "vector": "AVX2", "threads": 2, "torch": "2.13.0"}
CPU |= {"python": "3.11.7", "commit": "c0ffee1", "date": "2026-01-01"}
LINE = "Some CPU (AVX2), threads: 2, torch 2.13.0, Python 3.11.7, commit c0ffee1, 2026-01-01."


def layer(norm, provider, ratio, channels=512, **more):
    row = {**CPU, "norm": norm, "options": "", "provider": provider, "rows": 4096}
    return {**row, "channels": channels, "direction": "forward+backward", "ratio": ratio, **more}


def update(norm, ratio, kernels="auto", peak=1.004, **more):
    quartiles = {"ratio_p25": ratio - 0.01, "ratio_p50": ratio, "ratio_p75": 1.1}
    row = {**CPU, "recipe": "iwslt14_de_en", "norm": norm, "options": "", "kernels": kernels}
    row |= {"tokens": 4096, **quartiles}
    return {**row, "updates_per_s": 0.2, "peak_mib": 3000.0, "peak_ratio": peak, **more}


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
        ("gpu_layers", "gpu"),
        ("gpu_updates", "gpu"),
    ],
)
def test_nothing_measured(table, name, script):
    assert table(name) == f"Not measured; `python benchmarks/{script}.py` does it."


def test_the_newest_row_of_each_kind_counts(table):
    rows = [
        layer("adanorm", "fused", 9.0, date="2025-01-01"),
        layer("adanorm", "fused", 0.7),
        layer("adanorm", "fused", 0.814, channels=1024),
        layer("adanorm", "plain", 3.0),
        layer("adanorm", "fused", 1.5, options="variant=released"),
        layer("adanorm", "fused", 99.0, channels=64, date="2025-01-01"),
        layer("adanorm", "fused", 99.0, direction="forward", date="2025-01-01"),
        layer("none", "plain", 1, commit="b+"),
        layer("layernorm", "copy", 0.1),
        layer("layernorm", "copy", 0.2, channels=1024),
    ]
    text = table("layers", layers=rows)
    assert cells(text, "adanorm") == [
        ["`adanorm`", "", "0.70 / 0.81", "—", "3.00 / not measured"],
        ["`adanorm`", "`variant=released`", "1.50 / not measured", "—", "—"],
    ]
    assert "2025" not in text and "99" not in text
    lines = text.split("\n")
    assert lines[-2:] == [LINE, LINE.replace("c0ffee1", "b+")]
    assert "at 4,096 x 512 / 4,096 x 1,024" in lines[-4]
    assert lines[-3].endswith("takes 0.10 / 0.20.")
    unmeasured = set(NORM_TYPES) - {"adanorm", "none", "layernorm"}
    assert all(cells(text, name)[0][2:] == ["not measured"] * 3 for name in unmeasured)


def test_layernorm_shows_no_figure_of_a_compiler_that_finds_nothing_to_compile(table):
    rows = [
        layer(name, form, 0.9) for name in ("layernorm", "dyt") for form in ("plain", "compile")
    ]
    text = table("layers", layers=rows)
    ((_, _, _, compiled, plain),) = cells(text, "layernorm")
    assert compiled == "—" and plain.startswith("0.90")
    assert cells(text, "dyt")[0][3].startswith("0.90")


def test_training(table):
    rows = [update("dyt", 0.5), update("dyt", 1.014), update("dyt", 0.7, "off", peak=None)]
    rows += [update("dyt", 0.2, recipe="multi30k_cpu"), update("derf", 1.05, peak=None)]
    text = table("training", training=rows)
    assert cells(text, "dyt") == [["`dyt`", "", "1.01", "1.00 to 1.10", "1.00"]]
    assert cells(text, "derf") == [["`derf`", "", "1.05", "1.04 to 1.10", "not measured"]]
    assert cells(text, "none") == [["`none`", "", *["not measured"] * 3]]


def test_choices_of_kernels_side_by_side(table):
    rows = [update("dyt", 0.5, "off"), update("dyt", 1.014), update("derf", 1.0)]
    rows += [update("dyt", 0.2, "compile", recipe="multi30k_cpu")]
    text = table("kernels", training=rows)
    missing = "not measured"
    assert cells(text, "dyt") == [
        ["`dyt`", "", "`auto`", "1.01 (1.00 to 1.10)", missing],
        ["`dyt`", "", "`off`", "0.5 (0.5 to 1.1)", missing],
        ["`dyt`", "", "`compile`", missing, "0.2 (0.2 to 1.1)"],
    ]
    assert "derf" not in text and text.endswith(LINE)


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


def test_updates_on_a_gpu(table):
    row = {**CPU, "norm": "dyt", "options": "", "optimizer": "adam_foreach", "ms": 20.0}
    row |= {"ratio_p25": 0.9, "ratio_p50": 0.95, "ratio_p75": 1.0, "busy_ms": 5.0}
    row |= {"kernels": 1300, "peak_mib": 2048.0}
    old = {"kernels": None, "busy_ms": None, "peak_mib": None}
    rows = [
        {**row, "stock_optimizer": "adam_foreach"},
        {**row, **old, "norm": "stock", "stock_optimizer": "adam"},
    ]
    text = table("gpu_updates", gpu_updates=rows)
    ratio = ["0.95", "0.90 to 1.00"]
    assert cells(text, "dyt") == [["`dyt`", "", "`adam_foreach`", *ratio, "1300", "25%", "2,048"]]
    (stock,) = cells(text, "stock")
    assert stock[2:] == ["`adam_foreach, stock adam`", *ratio, *["not measured"] * 3]
    assert text.endswith(LINE)


def test_a_file_of_something_else(table):
    with pytest.raises(CommandError, match=r"layers\.csv has no column options, provider"):
        table("layers", layers=[{"norm": "dyt", "ratio": "1"}])
