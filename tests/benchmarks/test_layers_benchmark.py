"""benchmarks/layers.py: what it measures, what it records, and what it calls a miss."""

from __future__ import annotations

import pytest

import layers
import speed_tables
from layers import layer_setups, make_calls, make_data
from norm_plugin.kernels import has_fused_form
from norm_plugin.norms import norm_spec

EAGER = ["torch", "plain", "fused"]  # compiling takes seconds per norm


@pytest.fixture(autouse=True)
def prepared(monkeypatch, cpu_kernels):
    monkeypatch.setattr(layers, "keep_freed_memory", lambda: None)  # this process has other tests


def test_a_quarter_of_the_positions_is_padding():
    for rows in (64, 4096, 512):
        x, dy, mask = make_data(rows, 8)
        assert x.shape == dy.shape and x.shape[0] * x.shape[1] == rows
        assert mask.shape == (x.shape[1], x.shape[0])
        # lengths run evenly from T/2 to T, and rounding moves each by half a position at most
        assert mask.float().mean() == pytest.approx(0.25, abs=0.5 / x.shape[0])
        assert len(mask.sum(dim=1).unique()) > 4, "not ragged"
    with pytest.raises(ValueError, match="rows is 4097; take a power of two"):
        make_data(4097, 8)


@pytest.mark.parametrize("setup", layer_setups(), ids=str)
def test_every_form_of_every_norm_runs(setup):
    data = make_data(16, 16)
    calls = make_calls(setup, data, EAGER)
    assert {"torch", "plain"} <= set(calls)
    assert ("fused" in calls) == has_fused_form(norm_spec(setup.norm).cls)
    for call in calls.values():
        data.x.grad = None
        call()
        assert data.x.grad is not None


def test_rows_are_written_and_read(tmp_path, capsys, monkeypatch):
    for module in (layers, speed_tables):
        monkeypatch.setattr(module, "SIZES", ((16, 8), (16, 16)))
    output = tmp_path / "layers.csv"
    argv = ["--quick", "--threads", "1", "--output", str(output), "--norms", "adanorm", "none"]
    assert layers.main([*argv, "--providers", *EAGER[1:], "--rows", "16"]) == 0
    lines = output.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 2 * 3 + 2 * 2
    assert "norm adanorm  options variant=released  rows 16" in capsys.readouterr().out
    table = speed_tables.layers_table(output)
    (row,) = [line for line in table.split("\n") if line.startswith("| `none` |")]
    assert row.split("|")[3].strip() == "—"
    assert " / " in row.split("|")[5] and "not measured" not in row
