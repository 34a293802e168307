"""benchmarks/layers.py: what it measures, what it records, and what it calls a miss."""

from __future__ import annotations

import pytest
import torch

import layers
import speed_tables
from layers import BOTH, FORWARD, SIZES, TARGETS, layer_setups, make_calls, make_data
from measuring import timing
from measuring.command import Setup
from norm_plugin.kernels import has_fused_form
from norm_plugin.norms import norm_spec

EAGER = ["torch", "plain", "fused", "reference"]  # compiling takes seconds per norm


@pytest.fixture(autouse=True)
def prepared(monkeypatch, cpu_kernels):
    monkeypatch.setattr(layers, "keep_freed_memory", lambda: None)  # this process has other tests


ADANORM = Setup("adanorm")


def measured(ratio, setup=ADANORM, size=SIZES[0], provider="fused", direction=BOTH):
    place = {"rows": size[0], "channels": size[1], "direction": direction}
    return {**setup._asdict(), **place, "provider": provider, "ratio": ratio}


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


def test_every_target_is_of_a_setup_that_exists():
    assert set(TARGETS) <= set(layer_setups())


@pytest.mark.parametrize("setup", layer_setups(), ids=str)
def test_every_form_of_every_norm_runs(setup):
    data = make_data(16, 16)
    for direction in (BOTH, FORWARD):
        calls = make_calls(setup, data, direction, EAGER)
        assert {"torch", "plain"} <= set(calls)
        assert ("fused" in calls) == has_fused_form(norm_spec(setup.norm).cls)
        assert ("reference" in calls) == (direction == BOTH)
        assert calls["plain"].args[0].func.training == (direction == BOTH)
        for name, call in calls.items():
            data.x.grad = None
            call()
            trained = direction == BOTH and name != "reference"
            assert (data.x.grad is not None) == trained


def test_rows_are_written_and_read(tmp_path, capsys, monkeypatch):
    for module in (layers, speed_tables):
        monkeypatch.setattr(module, "SIZES", ((16, 8), (16, 16)))
    output = tmp_path / "layers.csv"
    argv = ["--quick", "--threads", "1", "--output", str(output), "--norms", "adanorm", "none"]
    assert layers.main([*argv, "--providers", *EAGER[1:], "--rows", "16"]) == 0
    lines = output.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 2 * 4 + 2 * 3
    assert "norm adanorm  options variant=released  rows 16" in capsys.readouterr().out
    table = speed_tables.layers_table(output)
    (row,) = [line for line in table.split("\n") if line.startswith("| `none` |")]
    assert row.split("|")[3].strip() == "—"
    assert " / " in row.split("|")[5] and "not measured" not in row


def test_misses():
    setup = Setup("adanorm")
    both = [measured(1.0), measured(0.9, size=SIZES[1])]
    assert list(layers.misses(both, [setup])) == []
    assert list(layers.misses([measured(1.01), both[1]], [setup])) == [
        "adanorm at 4,096 x 512: 1.01, at most 1.0 is wanted"
    ]
    others = [measured(0.5, provider="compile"), measured(0.5, direction=FORWARD)]
    assert len(list(layers.misses([*others, both[1]], [setup]))) == 1
    assert list(layers.misses([measured(9.0, setup=Setup("derf"))], [Setup("derf")])) == []


# ---- on a GPU, which the CPU replaces here ------------------------------------------------------


class FakeEvent:
    """The n-th to be recorded is recorded at n ms."""

    clock = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        FakeEvent.clock += 1
        self.at = FakeEvent.clock

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(timing, "COPIED", 1000)
    monkeypatch.setattr(timing.torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(timing.torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda: None)
    for name in ("empty", "zeros"):
        make = getattr(torch, name)
        on_cpu = lambda *size, make=make, dtype, device: make(*size, dtype=dtype)  # noqa: E731
        monkeypatch.setattr(timing.torch, name, on_cpu)


def test_a_row_of_a_gpu_has_the_share_of_a_copy(gpu, monkeypatch):
    assert timing.copied_bytes_per_ms(2) == 2000  # 2 * 1,000 bytes in a millisecond
    monkeypatch.setattr(layers, "CUDA", "cpu")
    args = layers.parse_args(["--providers", "fused", "plain", "--repetitions", "2"])
    args.copied_bytes_per_ms = 4096.0
    rows = layers.measure(Setup("rmsnorm"), 128, 8, args, "float32")
    # torch's own RMSNorm is measured beside ours; Liger and apex, where they can be imported
    assert [row["provider"] for row in rows][:4] == ["torch", "fused", "plain", "rmsnorm"]
    assert {row["p50_ms"] for row in rows} == {1.0} and {row["ratio"] for row in rows} == {1.0}
    # five tensors of 128 x 8 numbers of 4 bytes at 4,096 bytes a millisecond
    assert {row["copy_share"] for row in rows} == {5 * 128 * 8 * 4 / 4096}
