"""Outputs that are no regular files, and checkpoints whose bits have changed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from norm_plugin.checkpoints import average, repair
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.io.command_line import CommandError


def averaged(*inputs: Path, output: str | Path) -> None:
    average.main(["--inputs", *map(str, inputs), "--output", str(output)])


@pytest.fixture
def inputs(tmp_path, save_checkpoint_file) -> list[Path]:
    return [save_checkpoint_file(tmp_path / f"{n}.pt", updates=n) for n in (1, 3)]


def test_the_file_that_a_symlink_points_to_is_replaced(tmp_path, inputs) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target.pt", tmp_path / "link.pt"
    link.symlink_to("there/target.pt")
    for _ in range(2):  # where the target does not exist yet, and where it does
        averaged(*inputs, output=link)
        assert link.is_symlink()
        assert load_checkpoint(target)["model"]["weight"][0, 0] == 2
    assert os.listdir(target.parent) == ["target.pt"]


def flip(path: Path, places: list[int], bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 1 << bit
    path.write_bytes(content)


def test_flipped_bits_are_noticed(tmp_path, save_checkpoint_file) -> None:
    weight = torch.linspace(-1, 1, 100_000).view(1000, 100)  # nearly all of the file
    for name, updates in (("checkpoint1", 1), ("checkpoint2", 2), ("checkpoint_last", 2)):
        save_checkpoint_file(
            tmp_path / f"{name}.pt", updates=updates, **{"encoder.embed_tokens.weight": weight}
        )
    last = tmp_path / "checkpoint_last.pt"
    middle = range(last.stat().st_size // 4, last.stat().st_size // 2)  # numbers of the weight
    flip(last, random.Random(0).sample(middle, 40))
    with pytest.raises(CommandError, match=r"damaged \(the checksum of"):
        averaged(tmp_path / "checkpoint1.pt", last, output=tmp_path / "out.pt")
    assert "was damaged; replaced by checkpoint2.pt" in repair.repair(tmp_path)[0]
    assert torch.equal(load_checkpoint(last)["model"]["encoder.embed_tokens.weight"], weight)


def test_an_average_is_not_averaged_again(tmp_path, inputs) -> None:
    averaged(*inputs, output=tmp_path / "averaged.pt")
    with pytest.raises(CommandError, match=r"averaged\.pt is itself an average"):
        averaged(*inputs, tmp_path / "averaged.pt", output=tmp_path / "out.pt")
