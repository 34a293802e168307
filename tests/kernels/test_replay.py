"""A call that repeats launches passes what the call itself would pass."""

from __future__ import annotations

import weakref

import pytest
import torch

from norm_plugin.kernels.cpu import loading

pytest.importorskip("triton", reason="no triton: scripts/setup.sh installs it")

from norm_plugin.kernels.triton import tiles
from norm_plugin.kernels.triton.replay import replayed

CALLED = []  # each time that the function itself runs


class AlwaysCompiled(dict):
    """Stands in for the compiled kernels: it has each of them; a launch stores its arguments."""

    def __init__(self):
        super().__init__()
        self.launched = []

    def get(self, key):
        return lambda *args: self.launched.append(args), 7, 8


@pytest.fixture
def launched(monkeypatch, native):
    compiled = AlwaysCompiled()
    monkeypatch.setattr(tiles, "_COMPILED", compiled)
    CALLED.clear()
    return compiled.launched


def kernel():
    """Its identity is part of a key."""


def make():
    @replayed(3)
    def function(x, weight, state, factor, foreign=False):
        CALLED.append(factor)
        scratch, y = tiles.empty(x, 2, x.size(1)), tiles.empty_like(x)
        ticket = tiles.ticket_for(x)
        tiles.launch(kernel, x, (3, 1, 1), (x, weight, scratch, ticket, factor), (5,), 4)
        last = x + 1 if foreign else scratch[1]
        tiles.launch(kernel, x, (4, 1, 1), (last, state, y, None, factor), (6,), 4)
        return y, scratch[1], None

    return function


def inputs(rows=6):
    return torch.randn(rows, 8), torch.randn(8), torch.randn(8)


def addresses(args):
    return [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]


def test_a_repeated_call_launches_the_same_with_other_tensors(launched):
    function = make()
    for call in range(3):
        x, weight, state = inputs()
        y, part, nothing = function(x, weight, state, 0.5)
        first, second = map(addresses, launched[2 * call :])
        head = [1, 1, 0, 7, 8, None, None, None]
        ticket = tiles.ticket_for(x).data_ptr()
        scratch = part.data_ptr() - 4 * 8
        assert first == [3, *head, x.data_ptr(), weight.data_ptr(), scratch, ticket, 0.5, 5]
        assert second == [4, *head, part.data_ptr(), state.data_ptr(), y.data_ptr(), None, 0.5, 6]
        assert y.shape == x.shape and y.dtype == x.dtype and part.shape == (8,) and nothing is None
    assert len(CALLED) == 1 and len(launched) == 6


@pytest.mark.parametrize("change", ["rows", "dtype", "absent", "number", "alias"])
def test_what_a_launch_depends_on_makes_another_program(change, launched):
    function = make()
    for _ in range(2):
        x, weight, state = inputs()
        function(x, weight, state, 0.5)
        if change == "rows":
            function(inputs(7)[0], weight, state, 0.5)
        elif change == "dtype":
            function(x.bfloat16(), weight, state, 0.5)
        elif change == "absent":
            function(x, weight, None, 0.5)
        elif change == "number":
            function(x, weight, state, 0.25)
        else:
            function(x, weight, weight, 0.5)
    assert len(CALLED) == 2
    assert launched[-1][-2] == (0.25 if change == "number" else 0.5)


def test_memory_that_kernels_cannot_read_at_once_is_left_to_the_function(launched):
    function = make()
    x, weight, state = inputs()
    function(x, weight, state, 0.5)
    odd = torch.randn(49)[1:].view(6, 8)
    function(odd, weight, state, 0.5)
    assert len(CALLED) == 2


def test_a_tensor_of_an_operation_of_torch_is_never_repeated(launched):
    function = make()
    for _ in range(3):
        function(*inputs(), 0.5, True)
    assert len(CALLED) == 3


def test_a_program_keeps_no_tensor_of_the_call_that_was_recorded(launched):
    function = make()
    x, weight, state = inputs()
    y, part, _ = function(x, weight, state, 0.5)
    launched.clear()
    tensors = [weakref.ref(each) for each in (x, weight, state, y, part)]
    del x, weight, state, y, part
    assert [each() for each in tensors] == [None] * 5
    function(*inputs(), 0.5)
    assert len(CALLED) == 1


def test_without_the_extension_each_call_runs(launched, monkeypatch):
    monkeypatch.setattr(loading, "load", lambda: (None, "not built"))
    function = make()
    for _ in range(3):
        function(*inputs(), 0.5)
    assert len(CALLED) == 3
