"""Checkpoints with numbers of numpy, as fairseq stores them, are read; nothing else of numpy is."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging.meters import AverageMeter

from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.safe_loading import RefusedContentError

COUNTS = {"val": np.arange(4), "sum": np.array([9, 7, 5, 3]), "count": np.int64(2), "round": None}
"""A meter of a training with ``--eval-bleu``."""


def saved(path, **extra_state) -> bytes:
    """The bytes of a checkpoint, in the format in which names can be replaced."""
    train = {"epoch": 1, "train_iterator": {"epoch": 1}, **extra_state}
    history = [{"num_updates": 1, "best_loss": np.float64(2.5)}]
    state = {"model": {}, "args": None, "extra_state": train, "optimizer_history": history}
    stream = io.BytesIO()
    torch.save(state, stream, _use_new_zipfile_serialization=False)
    path.write_bytes(stream.getvalue())
    return stream.getvalue()


@pytest.mark.parametrize("module", [b"numpy._core.", b"numpy.core."], ids=["numpy 2", "numpy 1"])
def test_arrays_and_scalars_are_read(tmp_path, module) -> None:
    path = tmp_path / "checkpoint_last.pt"
    numbers = {kind: np.ones(2, kind) for kind in ("?", "i1", "u8", ">i4", "f2", "<f8", "c16")}
    content = saved(path, meter=COUNTS, val_loss=np.float32(0.5), numbers=numbers)
    assert b"numpy._core." in content
    path.write_bytes(content.replace(b"numpy._core.", module))
    for state in (load_checkpoint(path), checkpoint_utils.load_checkpoint_to_cpu(str(path))):
        extra = state["extra_state"]
        assert extra["val_loss"] == 0.5
        for kind, array in numbers.items():
            assert np.array_equal(extra["numbers"][kind], array)
        meter = AverageMeter()
        meter.load_state_dict(extra["meter"])
        assert meter.avg.tolist() == [4.5, 3.5, 2.5, 1.5]


class Subclass(np.ndarray):
    pass


class Call:
    """Pickled as a call of ``eval``."""

    def __reduce__(self):
        return eval, ("1",)


REFUSED = {
    "ObjectDType": np.array([None]),
    "StrDType": np.array(["abc"]),
    "numpy.ma.core._mareconstruct": np.ma.array([1]),
    "Subclass": np.zeros(1).view(Subclass),
    "eval": Call(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused_by_name(tmp_path, what) -> None:
    path = tmp_path / "checkpoint_last.pt"
    saved(path, meter=REFUSED[what])
    message = rf"{path} holds \S*( ')?\S*{what}.* safe loader does not read"
    with pytest.raises(CommandError, match=message):
        load_checkpoint(path)
    with pytest.raises(RefusedContentError, match=message):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
