"""benchmarks/gpu.py: the measurements of a window on a GPU, which the CPU replaces here."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import gpu
from gpu import FIRST, PARTS, Window, all_setups, parse_args
from measuring.command import Setup
from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import NORM_TYPES


@pytest.fixture
def args(tmp_path, toy):
    return parse_args(["--device", "cpu", "--quick", "--data", str(toy), "--output", str(tmp_path)])


def rows_of(args, part):
    return pd.read_csv(args.output / f"gpu_{part}.csv", keep_default_na=False)


def test_every_norm_is_measured_and_the_most_important_first():
    setups = all_setups()
    assert setups[: len(FIRST)] == list(FIRST) and len(set(setups)) == len(setups)
    assert {setup.norm for setup in setups} == set(NORM_TYPES)


def test_layers_are_measured_once(args, monkeypatch, cpu_kernels):
    monkeypatch.delitem(gpu.FORMS, "compile")  # which takes seconds per norm
    window = Window(args)
    PARTS["layers"](window)
    rows = rows_of(args, "layers")
    assert list(rows["norm"][:3]) == [
        "torch.nn.LayerNorm",
        "torch.nn.RMSNorm",
        "torch.nn.BatchNorm1d",
    ]
    assert set(rows["dtype"]) == {"float32", "bfloat16"} and set(rows["rows"]) == {64}
    fused = rows[(rows["norm"] == "powernorm") & (rows["provider"] == "fused")]
    assert len(fused) == 2 and (fused["host_us"].astype(float) > 0).all()
    assert (rows[rows["norm"] == "torch.nn.LayerNorm"]["host_ratio"].astype(float) == 1).all()
    assert len(rows) == len(rows.drop_duplicates(["norm", "options", "provider", "dtype"]))
    PARTS["layers"](window)  # goes on, and has nothing to do
    assert len(rows_of(args, "layers")) == len(rows)
    args.setups.append(Setup("rmsnorm"))
    PARTS["layers"](window)
    added = rows_of(args, "layers")[len(rows) :]
    assert set(added["norm"]) == {"rmsnorm"}


def test_nothing_begins_when_the_time_is_over(args, cpu_kernels):
    window = Window(args)
    window.seconds = -1
    for part in ("layers", "updates"):
        PARTS[part](window)
    assert not list(args.output.iterdir())


def test_updates_are_compared_with_stock(args, cpu_kernels):
    args.setups = []
    PARTS["updates"](Window(args))
    rows = rows_of(args, "updates")
    assert list(zip(rows["norm"], rows["optimizer"], rows["stock_optimizer"])) == [
        ("stock", "adam_foreach", "adam"),
        ("stock", "adam_foreach", "adam_foreach"),
    ]
    assert (rows["host_ms"] <= rows["ms"] + 0.01).all() and (rows["ratio_p50"] > 0).all()


def test_a_failure_does_not_stop_the_others(args, monkeypatch, capsys, cpu_kernels):
    def fail(window):
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(PARTS, "layers", fail)
    monkeypatch.setitem(PARTS, "updates", lambda window: None)
    argv = ["--device", "cpu", "--quick", "--data", str(args.data), "--output", str(args.output)]
    assert gpu.main([*argv, "--parts", "layers", "updates"]) == 1
    shown = capsys.readouterr()
    assert (
        "layers: failed: RuntimeError: no kernel image" in shown.err and "== updates" in shown.out
    )


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--device", "cpu", "--quick"], "give --output: this is no measurement"),
        ([], "torch finds no CUDA device; give --device cpu"),
    ],
)
def test_what_it_refuses(argv, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CommandError, match=message):
        parse_args(argv)
