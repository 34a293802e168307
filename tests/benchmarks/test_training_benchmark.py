"""benchmarks/training.py: the two models it compares, and its rows."""

from __future__ import annotations

import multiprocessing
import os
from argparse import Namespace
from pathlib import Path

import torch

import speed_tables
import training
from measuring.command import Setup, choose_setups, parse_setup
from measuring.records import SAME_TRAINING, read_rows
from norm_plugin.declarations.flags import option_field
from norm_plugin.norms import NORM_TYPES
from training import RECIPES, STOCK, Run, training_argv


def arguments(data=Path("data"), **more):
    return Namespace(
        **{"data": data, "recipe": RECIPES[0], "overrides": [], "device": "cpu"} | more
    )


SMALL = {"overrides": ["size=smoke"]}


def test_the_two_models_differ_in_the_norm_alone(toy):
    stock, ours = (
        Run(setup, "auto", arguments(toy, **SMALL)) for setup in (STOCK, Setup("layernorm"))
    )
    theirs = stock.model.state_dict()
    assert stock.cfg.model.arch == "transformer_iwslt_de_en"
    assert ours.cfg.model.arch == "norm_transformer_iwslt_de_en"
    assert {name: value.shape for name, value in ours.model.state_dict().items()} == {
        name: value.shape for name, value in theirs.items()
    }
    for run in (stock, ours):
        assert run.model.encoder.layers[0].normalize_before
        assert run.model.decoder.layers[0].normalize_before
        assert run.cfg.model.dropout == 0.3 and run.cfg.dataset.max_tokens == 4096
    pairs = zip(stock.batches(3), ours.batches(3))
    for first, second in pairs:
        assert torch.equal(first["net_input"]["src_tokens"], second["net_input"]["src_tokens"])


def test_options_become_flags():
    setup = parse_setup("powernorm:warmup_updates=0,variant=released")
    argv = training_argv(setup, arguments())
    for name, value in (("warmup_updates", "0"), ("variant", "released")):
        flag = "--" + option_field(name).replace("_", "-")
        assert argv[argv.index(flag) + 1] == value
    assert not [word for word in training_argv(STOCK, arguments()) if word.startswith("--norm-")]


def test_every_norm_is_trained():
    setups = training.training_setups()
    assert {setup.norm for setup in setups} == set(NORM_TYPES)
    assert len(set(setups)) == len(setups)
    for setup in setups:  # each can be named on the command line
        assert setup in choose_setups([":".join(setup).replace(" ", ",").rstrip(":")], setups)
        assert choose_setups([setup.norm], setups)[0].norm == setup.norm


def test_rows_are_written_and_read(toy, tmp_path, capsys, monkeypatch, cpu_kernels):
    alternate = training.alternate

    def timed(*args):
        """The updates are made, and these milliseconds stand for theirs."""
        assert set(alternate(*args)) == {"stock", "norm"}
        return {"stock": [200.0, 300.0], "norm": [100.0, 100.0]}

    monkeypatch.setattr(training, "alternate", timed)
    monkeypatch.setattr(training, "peak_of", lambda setup, *_: 80.0 if setup == STOCK else 100.0)
    output = tmp_path / "training.csv"
    argv = ["--data", str(toy), "--quick", "--updates", "2", "--threads", "1"]
    argv += ["--norms", "adanorm", "--output", str(output)]
    assert training.main(argv) == 0
    assert capsys.readouterr().out.startswith("recipe iwslt14_de_en  norm adanorm  ")
    (line,) = [
        line for line in speed_tables.training_table(output).split("\n") if "`adanorm`" in line
    ]
    assert "not measured" not in line
    columns = ("updates_per_s", "ratio_p50", "peak_mib", "peak_ratio")
    (written,) = read_rows(output, SAME_TRAINING, columns).to_dict("records")
    # ratios of updates/s: of two updates on one batch, that of the shorter time is above 1
    assert (written["updates_per_s"], written["ratio_p50"]) == (10, 2.5)
    assert (written["peak_mib"], written["peak_ratio"]) == (100, 1.25)
    assert line.split("|")[-2].strip() == "1.25"


def test_the_peak_is_measured_in_a_process_of_its_own(toy, monkeypatch):
    args = arguments(toy, **SMALL, threads=1, memory_updates=1)
    # a forked process has the imports already
    monkeypatch.setattr(training, "get_context", lambda kind: multiprocessing.get_context("fork"))
    parent, prepare = os.getpid(), training.prepare_process

    def prepare_the_other(threads):
        assert os.getpid() != parent
        prepare(threads)

    monkeypatch.setattr(training, "prepare_process", prepare_the_other)
    peak = training.peak_of(Setup("adanorm"), "auto", args)
    assert peak is not None and 1 < peak < 1000  # MiB
    args.memory_updates = 0
    assert training.peak_of(Setup("adanorm"), "auto", args) is None
