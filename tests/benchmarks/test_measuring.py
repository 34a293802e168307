"""What the benchmarks share: setups, alternation, quartiles, and rows with where they come from."""

from __future__ import annotations

import pytest

from measuring import records, timing
from measuring.command import Setup, choose_setups, parse_setup
from measuring.records import append, provenance
from measuring.timing import alternate
from norm_plugin.io.command_line import CommandError


def test_a_setup_from_a_word():
    setup = parse_setup("powernorm:variant=released,layer_scale_groups=4")
    assert setup == Setup("powernorm", "variant=released layer_scale_groups=4")
    assert setup.build(8).layer_scale_groups == 4


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nosuch", "--norms: unknown norm 'nosuch'; choose from"),
        ("dyt:k=1", "--norms: norm 'dyt' has no option 'k'; its options are eps, alpha_init"),
        ("dyt:eps=much", "--norms: eps is 'much'; it must be of type float"),
    ],
)
def test_a_setup_that_does_not_exist(word, message):
    with pytest.raises(CommandError, match=message):
        choose_setups([word], [])


def test_calls_take_turns_and_the_first_rounds_do_not_count(monkeypatch):
    seen, clock = [], iter(range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) ** 2)
    times = alternate({name: lambda name=name: seen.append(name) for name in "AB"}, 2, warmup=1)
    assert "".join(seen) == "ABABAB"
    # (2 n + 1)^2 - (2 n)^2 = 4 n + 1 seconds for the n-th call
    assert times == {"A": [9000, 17000], "B": [13000, 21000]}


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
    with pytest.raises(CommandError, match=r"some\.csv has the columns norm,options, but the new"):
        append(path, [{"options": "", "norm": "dyt"}])
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]
