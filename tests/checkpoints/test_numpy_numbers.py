"""Checkpoints with numbers of numpy, as fairseq stores them, are read; nothing else of numpy is."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from types import SimpleNamespace

import fairseq_cli.generate
import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from norm_lab.report import spectrum
from norm_plugin.checkpoints.files import load_checkpoint, save_checkpoint
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.safe_loading import RefusedContentError, safe_loading
from norm_plugin.models.stored_numbers import STAND_INS, allowing_numbers, plain_numbers
from readers import QUICK, by_fairseq

COUNTS = {
    "val": np.array([4, 3, 2, 1]),
    "sum": np.array([9, 7, 5, 3]),
    "count": np.int64(2),
    "round": None,
}
METERS = [(100, "_bleu_counts", "AverageMeter", COUNTS)]
"""The meters of a training with ``--eval-bleu`` that was saved without this package."""


def with_numbers(state) -> dict:
    state = copy.deepcopy(state)
    state["extra_state"] |= {"best": np.float64(2.5), "val_loss": np.float32(0.5)}
    state["extra_state"]["metrics"] = OrderedDict(default=METERS, valid=METERS)
    return state


@pytest.fixture
def made(tmp_path, prepared, harmless) -> SimpleNamespace:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "checkpoint_last.pt"
    torch.save(with_numbers(harmless), path)
    return SimpleNamespace(path=path, output=tmp_path / "output.pt", data=prepared)


def spectrum_of_it(monkeypatch, made) -> None:
    spectrum.main([str(made.path)])


generate = by_fairseq(
    fairseq_cli.generate,
    *("--task", "translation", "--gen-subset", "train", "--beam", 1, "--max-len-b", 3),
    *("--num-workers", 0),  # one would be waited for when it is collected
)


@pytest.mark.parametrize(
    "command", [*QUICK, spectrum_of_it, generate], ids=lambda command: command.__name__
)
def test_every_command_reads_them(monkeypatch, made, command) -> None:
    command(monkeypatch, made)


def test_what_the_commands_write_has_plain_numbers(made) -> None:
    save_checkpoint(load_checkpoint(made.path), made.output)
    state = torch.load(made.output, weights_only=True)  # without our own classes
    (*_, meter), values = state["extra_state"]["metrics"]["valid"][0], state["extra_state"]
    assert meter == {"val": [4, 3, 2, 1], "sum": [9, 7, 5, 3], "count": 2, "round": None}
    assert (values["best"], values["val_loss"]) == (2.5, 0.5)


def test_meters_compute_with_what_was_stored(made) -> None:
    for path in (made.path, made.output):  # numpy's numbers, and plain ones
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        *_, meter = state["extra_state"]["metrics"]["valid"][0]
        assert type(meter["sum"]) is np.ndarray
        assert (meter["sum"] / meter["count"]).tolist() == [4.5, 3.5, 2.5, 1.5]
        save_checkpoint(load_checkpoint(made.path), made.output)


# --- what else of numpy


def saved(value) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


def loaded(value):
    with safe_loading("file"):
        return torch.load(saved(value), weights_only=True)


@pytest.mark.parametrize("kind", ["?", "i1", "u8", "<i4", ">i4", "f2", "<f8", ">f4", "c16"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_all_numbers_come_back(kind, shape) -> None:
    array = np.arange(6)[: int(np.prod(shape))].reshape(shape).astype(kind)
    back = loaded({"c": array, "fortran": array.copy(order="F"), "scalar": array.flat[0]})
    for name in ("c", "fortran"):
        assert np.array_equal(back[name], array)
        assert back[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert back["scalar"] == array.flat[0]
    assert np.array_equal(loaded(back)["c"], array)  # saved again it is numpy's


class Reduced:
    """Pickled as a call of ``function`` with ``arguments``, and a state to set."""

    def __init__(self, function, *arguments, state=None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


def number_type(*state):
    """A ``numpy.dtype("f8")`` with a state of its own."""
    return Reduced(np.dtype, "f8", False, True, state=(3, "<", *state))


class Subclass(np.ndarray):
    pass


rebuild = np._core.multiarray._reconstruct
BYTES = b"\1" * 8
ATTACKS = {
    "numpy.frombuffer": np.frombuffer,
    "numpy.load": Reduced(np.load, "file"),
    "numpy.float64": np.float64,
    "numpy.dtype('O8')": np.array([None]),
    "numpy.dtype('O')": Reduced(np.dtype, "O"),
    "numpy.dtype('U3')": np.array(["abc"]),
    "numpy.dtype('V8')": np.zeros(2, dtype=[("a", "f8")]),
    "numpy.dtype('M8')": np.datetime64("2020-01-01"),
    "numpy.dtype([('a', 'O')])": Reduced(np.dtype, [("a", "O")]),
    # bytes that would be addresses of objects
    "a numpy.dtype with fields": number_type(None, ("a",), {"a": (1, 0)}, -1, -1, 0),
    "a numpy.ndarray of something else": Reduced(
        rebuild, np.ndarray, (0,), b"b", state=(1, (1,), number_type(None, None, None), False, [1])
    ),
    "a scalar of numpy": Reduced(np._core.multiarray.scalar, "f8", BYTES),
    "a numpy.ndarray of class": Reduced(rebuild, OrderedDict, (0,), b"b"),
    "eval": Reduced(eval, "1"),
    "os.system": Reduced(__import__("os").system, "true"),
    "numpy.random._pickle": np.random.RandomState(1),
    "numpy.ma.core._mareconstruct": np.ma.array([1]),
    "test_numpy_numbers.Subclass": np.zeros(1).view(Subclass),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_anything_else_is_refused_by_name(tmp_path, attack) -> None:
    what = "posix.system" if attack == "os.system" else attack
    with pytest.raises(RefusedContentError) as error:
        loaded({"extra_state": ATTACKS[attack]})
    assert f"file holds {what}" in str(error.value)
    path = tmp_path / "checkpoint_last.pt"
    path.write_bytes(saved({"model": {}, "extra_state": ATTACKS[attack]}).getvalue())
    with pytest.raises(CommandError) as command_error:
        load_checkpoint(path)
    with pytest.raises(RefusedContentError, match="safe loader does not read"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    message = str(command_error.value)
    assert f"{path} holds {what}" in message
    assert "\033" not in message and "damaged" not in message


def test_an_array_is_made_by_no_other_way() -> None:
    for call in (Reduced(np.ndarray, (3,), "O"), Reduced(np.ndarray, (3,))):
        with pytest.raises(TypeError):
            loaded(call)


def test_nothing_else_came_with_them() -> None:
    before = set(torch.serialization.get_safe_globals())
    with allowing_numbers():
        new = set(torch.serialization.get_safe_globals()) - before
    assert set(torch.serialization.get_safe_globals()) == before
    assert {name for _, name in new} == set(STAND_INS)
    modules = ("numpy._core.multiarray", "numpy.core.multiarray")
    assert set(STAND_INS) == {
        *("numpy.ndarray", "numpy.dtype"),
        *(f"{module}.{name}" for module in modules for name in ("_reconstruct", "scalar")),
    }


def test_what_the_user_has_allowed_is_used() -> None:
    theirs = [np.ndarray, np.dtype, rebuild, np.dtypes.ObjectDType]
    with torch.serialization.safe_globals(theirs):
        assert loaded(np.array([None]))[0] is None


def test_names_of_numpy_1_are_read() -> None:
    stream = io.BytesIO()
    torch.save([np.arange(3), np.float64(2)], stream, _use_new_zipfile_serialization=False)
    assert b"numpy._core." in stream.getvalue()
    older = io.BytesIO(stream.getvalue().replace(b"numpy._core.", b"numpy.core."))
    with safe_loading("file"):
        array, number = torch.load(older, weights_only=True)
    assert (array.tolist(), number) == ([0, 1, 2], 2.0)


def test_tuples_keep_their_kind() -> None:
    stored = {"a": (np.float32(1), [np.arange(2)]), "t": torch.ones(1), "o": OrderedDict(b=1)}
    plain = plain_numbers(stored)
    assert plain["a"] == (1.0, [[0, 1]])
    assert plain["t"] is stored["t"]
    assert type(plain["o"]) is OrderedDict
