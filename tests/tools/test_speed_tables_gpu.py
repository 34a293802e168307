"""The columns of the GPU in the tables of what norms cost."""

from __future__ import annotations

import pytest

from measuring.records import read_rows
from speed_tables import RESULTS, speed_table
from test_speed_tables import cells, layer, update, write

ORIGIN = {"device": "Some GPU", "cuda": "12.8", "torch": "2.13.0", "python": "3.12.1"}
ORIGIN |= {"commit": "c0ffee1", "date": "2026-01-02"}
LINE = "GPU: Some GPU (CUDA 12.8), torch 2.13.0, Python 3.12.1, commit c0ffee1, 2026-01-02."


def on_gpu(norm, provider, p50, rows=4096, dtype="float32", floor=10.0):
    place = {"rows": str(rows), "channels": "512", "dtype": dtype, "provider": provider}
    return {**ORIGIN, "norm": norm, **place, "p50_us": str(p50), "floor_us": str(floor)}


def add(root, name, rows):
    write(root / "other", name, rows)
    (root / RESULTS).mkdir(parents=True, exist_ok=True)
    (root / "other" / RESULTS / f"{name}.csv").rename(root / RESULTS / f"{name}.csv")


UNIT = "torch.nn.LayerNorm"
LAYERS = [
    on_gpu("dyt", UNIT, 999),
    on_gpu("dyt", UNIT, 20),  # the newest counts
    *(on_gpu("dyt", "fused", 15), on_gpu("dyt", "plain", 100)),
    *(on_gpu("dyt", UNIT, 40, rows=8192), on_gpu("dyt", "fused", 50, rows=8192)),
    *(on_gpu("dyt", UNIT, 1, dtype="float16"), on_gpu("dyt", "fused", 99, dtype="float16")),
]


def test_layers_of_both_devices_stand_side_by_side(tmp_path):
    rows = [layer("dyt", "fused", 0.8), layer("dyt", "fused", 0.9, options="eps=1")]
    write(tmp_path, "layers", [*rows, layer("none", "plain", 0.2)])
    add(tmp_path, "gpu", LAYERS)
    text = speed_table("layers", tmp_path)
    gpu = ["0.75 / 1.25", "—", "5.00 / —", "67% / 20%"]
    assert cells(text, "dyt") == [
        ["`dyt`", "", "0.80 / not measured", "—", "—", "—", *gpu],
        ["`dyt`", "`eps=1`", "0.90 / not measured", "—", "—", "—", *["—"] * 4],
    ]
    assert cells(text, "none")[0][-4:] == ["—"] * 4
    assert "GPU: the same at 4,096 x 512 / 8,192 x 512, with each" in text
    assert text.splitlines()[-2].startswith("CPU: Some CPU") and text.splitlines()[-1] == LINE


def test_layers_of_a_gpu_alone(tmp_path):
    add(tmp_path, "gpu", LAYERS)
    text = speed_table("layers", tmp_path)
    assert cells(text, "dyt")[0][-4:] == ["0.75 / 1.25", "—", "5.00 / —", "67% / 20%"]
    assert text.splitlines()[-2:] == ["CPU: not measured.", LINE]


@pytest.mark.parametrize("cpu", [True, False])
def test_training(tmp_path, cpu):
    if cpu:
        write(tmp_path, "training", [update("dyt", 1.0)])
    add(tmp_path, "gpu_training", [{**update("dyt", 0.95), "device": "A GPU", "vector": "CUDA 13"}])
    text = speed_table("training", tmp_path)
    measured = ["1.0", "1.0 to 1.1", "1.00"] if cpu else ["not measured"] * 3
    gpu = ["0.9", "0.9 to 1.1", "1.00"]
    assert cells(text, "dyt") == [["`dyt`", "", "auto", *measured, *gpu]]
    assert "| GPU updates/s | GPU quartiles | GPU memory |" in text
    origin = "torch 2.13.0, Python 3.11.7, commit c0ffee1, 2026-01-01."
    assert text.splitlines()[-1] == f"GPU: A GPU (CUDA 13), {origin}"
    assert text.splitlines()[-2].startswith("CPU: Some CPU" if cpu else "CPU: not measured.")


def test_the_benchmark_writes_what_the_table_reads(tmp_path, monkeypatch):
    import gpu

    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    path = tmp_path / "gpu.csv"
    words = ["--device", "cpu", "--quick", "--norms", "dyt", "--dtypes", "float32"]
    gpu.main([*words, "--output", str(path)])
    rows = read_rows(path, ("norm",))
    add(tmp_path, "gpu", rows)
    assert cells(speed_table("layers", tmp_path), "dyt")[0][-4] != "—"
