"""--norm-kernels and NORM_KERNELS: who wins, what is refused, what is said."""

from __future__ import annotations

import logging
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from norm_plugin.kernels import (
    AUTO,
    OFF,
    VARIABLE,
    fused_forms,
    has_fused_form,
    resolve,
    set_kernels,
)
from norm_plugin.kernels import choice as choices
from norm_plugin.kernels.cpu import loading as cpu
from norm_plugin.kernels.fused_forms import Fused
from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def not_built(monkeypatch):
    """A machine where no compiler was found."""
    missing = lambda: (None, "not built (no compiler)")  # noqa: E731
    monkeypatch.setattr(cpu, "load", missing)
    choices.select_backend.cache_clear()
    choices._warn_once.cache_clear()
    yield
    choices.select_backend.cache_clear()
    choices._warn_once.cache_clear()


def test_the_environment_wins_over_the_flag(monkeypatch):
    assert resolve(None) == AUTO and resolve("off") == OFF
    monkeypatch.setenv(VARIABLE, "off")
    assert resolve("cpu") == OFF
    norm = build_norm("adanorm", 8)
    set_kernels(norm, AUTO)
    assert norm.fused is None


@pytest.mark.parametrize("name", NORM_TYPES)
def test_a_built_norm_has_its_fused_form(name, monkeypatch):
    assert isinstance(build_norm(name, 8).fused, Fused) == has_fused_form(norm_spec(name).cls)
    monkeypatch.setenv(VARIABLE, "off")
    assert build_norm(name, 8).fused is None


def test_an_unknown_word_is_refused_with_the_right_ones(monkeypatch):
    with pytest.raises(ValueError, match="norm_kernels is 'fast'; choose from auto, off, cpu"):
        resolve("fast")
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ValueError, match="NORM_KERNELS is 'fast'; choose from auto, off, cpu"):
        set_kernels(build_norm("adanorm", 8), AUTO)


def test_kernels_asked_for_by_name_must_be_there(not_built):
    with pytest.raises(ValueError, match="'cpu', but its kernels are not available: not"):
        resolve("cpu")


def test_without_kernels_the_plain_form_computes_and_it_is_said_once(not_built, caplog):
    torch.manual_seed(0)
    x = torch.randn(5, 8)
    with caplog.at_level(logging.WARNING):
        norms = [build_norm(name, 8) for name in ("adanorm", "powernorm", "adanorm")]
        set_kernels(torch.nn.ModuleList(norms), AUTO)
        outputs = [norm(x) for norm in norms]
    assert [m for m in caplog.messages if "plain torch" in m] == [
        "norms run in plain torch, which is slower: cpu kernels not built (no compiler)"
    ]
    plain = build_norm("adanorm", 8)
    set_kernels(plain, OFF)
    assert torch.equal(outputs[0], plain(x))


@pytest.mark.parametrize("stale", [SimpleNamespace(), SimpleNamespace(sources="of before")])
def test_kernels_of_other_code_are_not_used(stale, monkeypatch):
    """As after a git pull."""
    monkeypatch.setitem(sys.modules, cpu.EXTENSION, stale)
    native, description = cpu.load.__wrapped__()  # load() returns what was loaded before
    assert native is None
    assert description.startswith("built from other code than that of this version; to build them")


def test_a_device_without_kernels_is_left_to_the_plain_form(caplog):
    choices.select_backend.cache_clear()
    choices._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        ops, _ = choices.select_backend("cpu", torch.float32, torch.device("meta"), 8)
    assert ops is None
    assert "cpu kernels do not support meta tensors" in caplog.text


@pytest.mark.parametrize(("choice", "served"), [("auto", True), ("cpu", True), ("triton", False)])
def test_kernels_of_one_device_leave_the_tensors_of_another_to_the_plain_form(choice, served):
    ops, _ = choices.select_backend(choice, torch.float32, torch.device("cpu"), 8)
    assert (ops is not None) == served


@pytest.mark.parametrize(("capability", "level"), [("DEFAULT", "plain"), ("AVX2", "avx2")])
def test_torchs_own_level_is_taken_unless_our_variable_names_one(
    capability, level, native, monkeypatch
):
    if not native.machine_has(level):
        pytest.skip(f"this machine has no {level}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.delenv(cpu.VARIABLE, raising=False)
    assert cpu.chosen_level(native) == level
    monkeypatch.setenv(cpu.VARIABLE, "plain")
    assert cpu.chosen_level(native) == "plain"


def test_an_unknown_level_is_refused_with_those_that_there_are(native, monkeypatch):
    monkeypatch.setenv(cpu.VARIABLE, "sse9")
    with pytest.raises(ValueError, match="NORM_KERNELS_LEVEL is 'sse9'; this machine has plain"):
        cpu.chosen_level(native)


def test_compile_equals_the_plain_form(monkeypatch):
    """This compares what torch.compile traces; test_compile.py compares its generated code."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(fused_forms, "_COMPILED", {})
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    ours, plain = build_norm("adanorm", 8), build_norm("adanorm", 8)
    set_kernels(ours, "compile")
    set_kernels(plain, OFF)
    x_ours, x_plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    g = torch.randn(6, 8)
    ours(x_ours).backward(g)
    plain(x_plain).backward(g)
    # float32 sums of 8 terms in another order
    torch.testing.assert_close(x_ours.grad, x_plain.grad, rtol=1e-5, atol=1e-5)
    assert list(fused_forms._COMPILED) == [type(ours)]


def test_compile_leaves_statistics_over_positions_alone():
    norm = build_norm("powernorm", 8)
    set_kernels(norm, "compile")
    assert norm.fused is None
