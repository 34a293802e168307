"""The tables of what norms cost, from the files of the benchmarks."""

from __future__ import annotations

import pandas as pd
import pytest

from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import NORM_TYPES
from speed_tables import RESULTS, speed_table

CPU = {"device": "Some CPU", "vector": "AVX2", "threads": 2, "torch": "2.13.0"}
CPU |= {"python": "3.11.7", "commit": "c0ffee1", "date": "2026-01-01"}
GPU = {**CPU, "device": "Some GPU", "vector": "CUDA 12.8", "date": "2026-01-02"}
CPU_LINE = (
    "CPU: Some CPU (AVX2), 2 threads, torch 2.13.0, Python 3.11.7, commit c0ffee1, 2026-01-01."
)
GPU_LINE = "GPU: Some GPU (CUDA 12.8), torch 2.13.0, Python 3.11.7, commit c0ffee1, 2026-01-02."


def layer(norm, provider, ratio, channels=512, **more):
    row = {**CPU, "norm": norm, "options": "", "provider": provider, "rows": 4096}
    return {**row, "channels": channels, "direction": "forward+backward", "ratio": ratio, **more}


def on_gpu(norm, provider, ratio, dtype="float32", share=0.5, **more):
    return layer(norm, provider, ratio, **{**GPU, "dtype": dtype, "copy_share": share, **more})


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


@pytest.mark.parametrize("name", ["layers", "training"])
def test_nothing_measured(table, name):
    text = f"CPU: not measured; `python benchmarks/{name}.py` does it. GPU: not measured."
    assert table(name) == text


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
        ["`adanorm`", "", "0.70 / 0.81", "—", "3.00 / not measured", "—"],
        ["`adanorm`", "`variant=released`", "1.50 / not measured", "—", "—", "—"],
    ]
    assert "2025" not in text and "99" not in text
    lines = text.split("\n")
    other = CPU_LINE.replace("c0ffee1", "b+")
    assert lines[-3:] == [CPU_LINE, other, "GPU: not measured."]
    assert "at 4,096 x 512 / 4,096 x 1,024" in lines[-5]
    assert lines[-4].endswith("takes 0.10 / 0.20.")
    unmeasured = set(NORM_TYPES) - {"adanorm", "none", "layernorm"}
    assert all(cells(text, name)[0][2:] == ["not measured"] * 4 for name in unmeasured)


def test_layernorm_shows_no_figure_of_a_compiler_that_finds_nothing_to_compile(table):
    rows = [
        layer(name, form, 0.9) for name in ("layernorm", "dyt") for form in ("plain", "compile")
    ]
    text = table("layers", layers=rows)
    ((_, _, _, compiled, plain, _),) = cells(text, "layernorm")
    assert compiled == "—" and plain.startswith("0.90")
    assert cells(text, "dyt")[0][3].startswith("0.90")


LAYERS = [
    on_gpu("dyt", "fused", 9.0),
    on_gpu("dyt", "fused", 0.75, share=0.666),  # the newest counts
    *(on_gpu("dyt", "plain", 5.0), on_gpu("dyt", "fused", 1.25, rows=8192, share=0.2)),
    *(on_gpu("dyt", "torch", 1, dtype="float16"), on_gpu("dyt", "fused", 99, dtype="float16")),
]
ON_GPU = ["0.75 / 1.25", "—", "5.00 / not measured", "67% / 20%"]


def test_layers_of_both_devices_stand_side_by_side(table):
    rows = [layer("dyt", "fused", 0.8), layer("dyt", "fused", 0.9, options="eps=1")]
    text = table("layers", layers=[*rows, layer("none", "plain", 0.2)], gpu=LAYERS)
    assert cells(text, "dyt") == [
        ["`dyt`", "", "0.80 / not measured", "—", "—", "—", *ON_GPU],
        ["`dyt`", "`eps=1`", "0.90 / not measured", "—", "—", "—", *["not measured"] * 4],
    ]
    assert cells(text, "none")[0][-4:] == ["not measured"] * 4
    assert "GPU: the same at 4,096 x 512 / 8,192 x 512, on the device, and" in text
    assert text.splitlines()[-2:] == [CPU_LINE, GPU_LINE]


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
    assert "derf" not in text and text.endswith(CPU_LINE)


@pytest.mark.parametrize("cpu", [True, False])
def test_training_on_a_gpu(table, cpu):
    files = {"training": [update("dyt", 1.0)]} if cpu else {}
    text = table("training", gpu_training=[update("dyt", 0.95, **GPU)], **files)
    measured = ["1.0", "1.0 to 1.1", "1.00"] if cpu else ["not measured"] * 3
    assert cells(text, "dyt") == [["`dyt`", "", *measured, "0.9", "0.9 to 1.1", "1.00"]]
    assert "| GPU updates/s | GPU quartiles | GPU memory |" in text
    assert text.splitlines()[-2:] == [CPU_LINE if cpu else "CPU: not measured.", GPU_LINE]


def test_a_file_of_something_else(table):
    with pytest.raises(CommandError, match=r"layers\.csv has no column options, provider"):
        table("layers", layers=[{"norm": "dyt", "ratio": "1"}])


def test_layers_on_a_gpu_alone(table):
    text = table("layers", gpu=LAYERS)
    assert cells(text, "dyt") == [["`dyt`", "", *["not measured"] * 4, *ON_GPU]]
    assert "A copy of x" not in text and "CPU: not measured." in text
