"""The columns of the GPU in the tables of what norms cost."""

from __future__ import annotations

import pytest

from speed_tables import RESULTS, speed_table
from test_speed_tables import cells, layer, update, write

ORIGIN = {"device": "Some GPU", "vector": "CUDA 12.8", "python": "3.12.1", "date": "2026-01-02"}
LINE = "GPU: Some GPU (CUDA 12.8), torch 2.13.0, Python 3.12.1, commit c0ffee1, 2026-01-02."


def on_gpu(norm, provider, ratio, rows=4096, dtype="float32", share=0.5, **more):
    row = layer(norm, provider, ratio, **ORIGIN, **more)
    return {**row, "rows": str(rows), "dtype": dtype, "copy_share": str(share)}


def add(root, name, rows):
    write(root / "other", name, rows)
    (root / RESULTS).mkdir(parents=True, exist_ok=True)
    (root / "other" / RESULTS / f"{name}.csv").rename(root / RESULTS / f"{name}.csv")


LAYERS = [
    on_gpu("dyt", "fused", 9.0),
    on_gpu("dyt", "fused", 0.75, share=0.666),  # the newest counts
    *(on_gpu("dyt", "plain", 5.0), on_gpu("dyt", "fused", 1.25, rows=8192, share=0.2)),
    *(on_gpu("dyt", "torch", 1, dtype="float16"), on_gpu("dyt", "fused", 99, dtype="float16")),
]


def test_layers_of_both_devices_stand_side_by_side(tmp_path):
    rows = [layer("dyt", "fused", 0.8), layer("dyt", "fused", 0.9, options="eps=1")]
    write(tmp_path, "layers", [*rows, layer("none", "plain", 0.2)])
    add(tmp_path, "gpu", LAYERS)
    text = speed_table("layers", tmp_path)
    gpu = ["0.75 / 1.25", "—", "5.00 / not measured", "67% / 20%"]
    assert cells(text, "dyt") == [
        ["`dyt`", "", "0.80 / not measured", "—", "—", "—", *gpu],
        ["`dyt`", "`eps=1`", "0.90 / not measured", "—", "—", "—", *["not measured"] * 4],
    ]
    assert cells(text, "none")[0][-4:] == ["not measured"] * 4
    assert "GPU: the same at 4,096 x 512 / 8,192 x 512. The last" in text
    assert text.splitlines()[-2].startswith("CPU: Some CPU") and text.splitlines()[-1] == LINE


def test_layers_of_a_gpu_alone(tmp_path):
    add(tmp_path, "gpu", LAYERS)
    text = speed_table("layers", tmp_path)
    assert cells(text, "dyt")[0][-4:] == ["0.75 / 1.25", "—", "5.00 / not measured", "67% / 20%"]
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
