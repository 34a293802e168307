"""What the benchmarks share: setups, alternation, quartiles, and rows with where they come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from measuring import records, timing
from measuring.command import (
    benchmark_parser,
    choose_setups,
    parse_benchmark,
    prepare_process,
    report,
)
from measuring.records import append, cpu_model, provenance
from measuring.setups import TARGETS, Setup, layer_setups, parse_setup
from measuring.timing import alternate, quartiles
from norm_plugin.commands.command_line import CommandError
from norm_plugin.norms import NORM_TYPES

BENCHMARKS = Path(records.__file__).parents[1]


def test_every_norm_is_measured():
    assert {setup.norm for setup in layer_setups()} == set(NORM_TYPES)
    assert len(set(layer_setups())) == len(layer_setups())


def test_every_target_is_of_a_setup_that_exists():
    assert set(TARGETS) <= set(layer_setups())
    for setup in layer_setups():
        setup.build(64)


def test_powernorm_is_measured_in_its_warmup_and_after_it():
    norms = [setup.build(64) for setup in TARGETS if setup.norm == "powernorm"]
    kinds = {(norm.variant, norm.layer_scale_groups, norm.in_warmup) for norm in norms}
    both = (False, True)
    paper = {("paper", groups, warming) for groups in (0, 1, 8) for warming in both}
    assert kinds == paper | {("released", 8, warming) for warming in both}


def test_a_setup_from_a_word():
    setup = parse_setup("powernorm:variant=released,layer_scale_groups=4")
    assert setup == Setup("powernorm", "variant=released layer_scale_groups=4")
    assert setup.build(8).layer_scale_groups == 4


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nosuch", "--norms: unknown norm 'nosuch'; choose from"),
        ("dyt:k=1", "--norms: 'k=1' is not key=value with an option of dyt: eps, alpha_init"),
        ("dyt:eps", "--norms: 'eps' is not key=value"),
        ("dyt:eps=much", "--norms: eps is 'much'; it must be of type float"),
    ],
)
def test_a_setup_that_does_not_exist(word, message):
    with pytest.raises(CommandError, match=message):
        choose_setups([word], layer_setups())


def test_a_norm_alone_means_all_its_setups():
    chosen = choose_setups(["adanorm", "dyt:eps=1e-3"], layer_setups())
    expected = [Setup("adanorm"), Setup("adanorm", "variant=released"), Setup("dyt", "eps=1e-3")]
    assert chosen == expected
    assert choose_setups(None, layer_setups()) == layer_setups()


def test_calls_take_turns_and_the_first_rounds_do_not_count(monkeypatch):
    seen, clock = [], iter(range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) ** 2)
    times = alternate({name: lambda name=name: seen.append(name) for name in "AB"}, 2, warmup=1)
    assert "".join(seen) == "ABABAB"
    # (2 n + 1)^2 - (2 n)^2 = 4 n + 1 seconds for the n-th call
    assert times == {"A": [9000, 17000], "B": [13000, 21000]}


def test_quartiles():
    assert quartiles([5.0, 1.0, 2.0, 3.0, 4.0]) == (2.0, 3.0, 4.0)
    assert quartiles([1.0, 2.0]) == (1.25, 1.5, 1.75)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_provenance(monkeypatch, tmp_path):
    state = {"commit": "0123456789abcdef", "dirty": True}
    monkeypatch.setattr(records, "git_state", lambda folder: state)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    monkeypatch.setattr(records, "CPU_FACTS", cpuinfo)
    origin = provenance()
    assert origin["commit"] == "0123456+"
    assert origin["device"] == "Some CPU @ 2 GHz"
    state.update(dirty=False)
    assert provenance()["commit"] == "0123456"
    state.update(commit=None, dirty=None)
    assert provenance()["commit"] == ""
    assert all(str(value) for name, value in origin.items()), origin


def test_rows_are_appended_under_one_header(tmp_path):
    path = tmp_path / "results" / "some.csv"
    append(path, [{"norm": "dyt", "options": "a=1, b"}])
    append(path, [{"norm": "none", "options": ""}, {"norm": "none", "options": "c"}])
    text = 'norm,options\ndyt,"a=1, b"\nnone,\nnone,c\n'
    assert path.read_text() == text
    with pytest.raises(CommandError, match=r"some\.csv has the columns norm,options, the new"):
        append(path, [{"options": "", "norm": "dyt"}])
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_the_choice_of_kernels_is_the_benchmark_s(monkeypatch):
    monkeypatch.setenv("NORM_KERNELS", "off")
    with pytest.raises(CommandError, match="NORM_KERNELS is set"):
        prepare_process(1)


def test_what_is_tiny_is_no_result(tmp_path):
    def no_csv(*argv):
        parser = benchmark_parser("", "results.csv", "targets")
        return parse_benchmark(parser, argv).no_csv

    assert no_csv("--quick") and no_csv("--no-csv")
    assert not no_csv() and not no_csv("--quick", "--output", str(tmp_path / "other.csv"))


def test_a_missed_target_decides_the_status(capsys):
    assert report([]) == 0
    assert report(["dyt: 2.00"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["missed: dyt: 2.00", "1 targets missed"]


MEMORY = """
from measuring import memory
getattr(memory, {name!r})()
before = memory.resident_mib()
block = bytearray(16 * 2**20)  # written to, so it is in memory
del block
print(memory.resident_mib() - before, memory.peak_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
@pytest.mark.parametrize(
    ("name", "expected"), [("keep_freed_memory", 16), ("return_freed_memory", 0)]
)
def test_what_becomes_of_freed_memory(name, expected):
    command = [sys.executable, "-c", MEMORY.format(name=name)]
    result = subprocess.run(
        command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=60, check=True
    )
    left, peak = map(float, result.stdout.split())
    # All of the block or nothing. A quarter of it leaves room for an arena of Python's own objects
    # (1 MiB) and for the batches of pages in which the kernel counts.
    assert left == pytest.approx(expected, abs=4)
    assert peak == pytest.approx(16, abs=4)
    assert result.stderr == ""


def test_a_row_of_a_gpu_names_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    origin = provenance(gpu=True)
    assert (origin["device"], origin["vector"]) == ("Some GPU", "CUDA 12.8")
    assert provenance()["device"] == cpu_model()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert provenance(gpu=True)["vector"] == "ROCm 6.4"
