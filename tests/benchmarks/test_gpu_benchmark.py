"""benchmarks/gpu.py: what it does without a GPU, and its rows, by a clock that stands for one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from norm_plugin.commands.command_line import CommandError

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


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
def gpu(tmp_path, monkeypatch):
    """The benchmark as a module, its results in a folder of the test."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "OUTPUT", tmp_path / "gpu.csv")
    monkeypatch.setattr(module, "COPIED", 1000)
    return module


def test_without_a_device_it_says_so_and_writes_nothing(gpu, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu.main([])
    assert stopped.value.code == 2
    assert capsys.readouterr() == ("", "error: torch finds no CUDA device; nothing was measured\n")
    assert not gpu.OUTPUT.exists()


def test_a_row_for_each_provider(gpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "CPU", "another")  # so that the CPU is timed as a GPU is
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    assert gpu.bytes_per_microsecond("cpu", 2) == 2  # 2 * 1,000 bytes in a millisecond
    table = gpu.measure("powernorm", 128, 8, "float32", 2, 2.0, "cpu")
    gpu.append(gpu.OUTPUT, table)
    gpu.append(gpu.OUTPUT, table)
    gpu.show(table)

    # torch.compile does not serve statistics over positions
    assert [row["provider"] for row in table] == ["torch.nn.LayerNorm", "fused", "plain"]
    assert {row["p50_us"] for row in table} == {1000}
    # five tensors of 128 x 8 numbers of 4 bytes at 2 bytes a microsecond
    assert {row["floor_us"] for row in table} == {5 * 128 * 8 * 4 / 2}
    lines = gpu.OUTPUT.read_text().splitlines()
    assert lines[0] == "norm,rows,channels,dtype,provider,repetitions,p25_us,p50_us,p75_us,floor_us"
    assert len(lines) == 1 + 2 * 3
    assert "1.00 of LayerNorm" in capsys.readouterr().out


def test_where_fused_and_plain_would_be_the_same_nothing_is_measured(gpu, monkeypatch):
    monkeypatch.setenv("NORM_KERNELS", "off")
    with pytest.raises(CommandError, match="NORM_KERNELS is set"):
        gpu.main(["--device", "cpu", "--quick"])


@pytest.mark.parametrize("size", ["4096", "100x8", "0x8", "4096 x 8"])
def test_a_size_that_cannot_be(gpu, size, capsys):
    with pytest.raises(SystemExit):
        gpu.parse_args(["--sizes", size])
    assert f"'{size}' is no size such as 4096x512" in capsys.readouterr().err


def test_on_the_cpu_it_tries_the_command_out(gpu, tmp_path, capsys):
    words = ["--device", "cpu", "--quick", "--norms", "rmsnorm", "--dtypes", "float32"]
    gpu.main(words)
    assert not gpu.OUTPUT.exists()
    found = [line.split()[5] for line in capsys.readouterr().out.splitlines()[1:]]
    assert found == ["torch.nn.LayerNorm", "fused", "plain", "torch"]
    gpu.main([*words, "--output", str(tmp_path / "rows.csv")])
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 4
