"""Inputs and outputs that are no regular files, and checkpoints whose bits have changed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from norm_plugin.analysis import spectrum
from norm_plugin.checkpoints import average, repair
from norm_plugin.checkpoints.files import load_checkpoint, num_updates
from norm_plugin.commands.command_line import CommandError, read_text, write_text


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


@pytest.mark.parametrize("through_a_link", [False, True])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_an_output_that_is_no_regular_file_is_refused(
    tmp_path, inputs, kind, through_a_link
) -> None:
    # a link to the device: no test endangers the device itself
    output = tmp_path / "special"
    if kind == "device":
        output.symlink_to("/dev/full")
    if kind == "fifo":
        os.mkfifo(output)
    if kind == "folder":
        output.mkdir()
    if through_a_link:
        (tmp_path / "link").symlink_to(output)
    before = output.stat()
    path = tmp_path / "link" if through_a_link else output
    with pytest.raises(CommandError, match="it is not a regular file; choose another name"):
        averaged(*inputs, output=path)
    assert (output.stat().st_mode, output.stat().st_ino) == (before.st_mode, before.st_ino)


def test_the_longest_name_works(tmp_path) -> None:
    name = "𝄞" * (255 // len("𝄞".encode()))
    write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]
    assert read_text(tmp_path / name) == "text"


def special(kind: str, path: Path) -> Path:
    """A FIFO without a writer, or a link to a device without an end."""
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_an_input_that_is_no_regular_file_is_refused(tmp_path, inputs, kind) -> None:
    path = special(kind, tmp_path / "special.pt")
    for command in (
        lambda: averaged(*inputs, path, output=tmp_path / "out.pt"),
        lambda: spectrum.main([str(path)]),
        lambda: read_text(path),
    ):
        with pytest.raises(CommandError, match=r"cannot read .*special\.pt: it is not a regular"):
            command()


def test_a_symlink_to_itself_is_one_line(tmp_path, inputs) -> None:
    loop = tmp_path / "loop.pt"
    loop.symlink_to("loop.pt")
    with pytest.raises(CommandError, match=r"cannot read .*loop\.pt: Too many levels"):
        averaged(*inputs, loop, output=tmp_path / "out.pt")
    with pytest.raises(CommandError, match=r"cannot write .*loop\.pt: Too many levels"):
        averaged(*inputs, output=loop)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_repair_neither_reads_nor_removes_what_is_no_regular_file(
    tmp_path, save_checkpoint_file, kind
) -> None:
    save_checkpoint_file(tmp_path / "checkpoint1.pt", updates=5)
    names = ["checkpoint2.pt", "checkpoint3.pt.tmp", "averaged.pt.12.tmp"]
    paths = [special(kind, tmp_path / name) for name in names]
    (tmp_path / "checkpoint4.pt.tmp").mkdir()
    (tmp_path / "notes.pt.tmp").touch()
    repair.repair(tmp_path)
    assert all(os.path.lexists(path) and not path.is_file() for path in paths)
    assert (tmp_path / "notes.pt.tmp").exists()
    assert num_updates(load_checkpoint(tmp_path / "checkpoint_last.pt")) == 5
    (tmp_path / "checkpoint_last.pt").unlink()
    special(kind, tmp_path / "checkpoint_last.pt")
    with pytest.raises(CommandError, match=r"checkpoint_last\.pt: it is not a regular file"):
        repair.repair(tmp_path)


def test_repair_does_not_replace_a_symlink(tmp_path, save_checkpoint_file) -> None:
    # checkpoint2.pt must not take the content of checkpoint1.pt
    save_checkpoint_file(tmp_path / "checkpoint1.pt", updates=5)
    path = save_checkpoint_file(tmp_path / "checkpoint2.pt", updates=6)
    flip(path, [path.stat().st_size // 2])
    (tmp_path / "checkpoint_last.pt").symlink_to("checkpoint2.pt")
    before = path.read_bytes()
    with pytest.raises(CommandError, match="truncated or damaged"):
        repair.repair(tmp_path)
    assert path.read_bytes() == before


def flip(path: Path, places: list[int], bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bits_are_noticed(tmp_path, save_checkpoint_file, seed) -> None:
    weight = torch.linspace(-1, 1, 100_000).view(1000, 100)  # nearly all of the file
    for name, updates in (("checkpoint1", 1), ("checkpoint2", 2), ("checkpoint_last", 2)):
        save_checkpoint_file(
            tmp_path / f"{name}.pt", updates=updates, **{"encoder.embed_tokens.weight": weight}
        )
    last = tmp_path / "checkpoint_last.pt"
    middle = range(last.stat().st_size // 4, last.stat().st_size // 2)  # numbers of the weight
    flip(last, random.Random(seed).sample(middle, 40), bit=seed % 8)
    for command in (
        lambda: averaged(tmp_path / "checkpoint1.pt", last, output=tmp_path / "out.pt"),
        lambda: spectrum.main([str(last)]),
    ):
        with pytest.raises(CommandError, match=r"damaged \(wrong checksum of"):
            command()
    assert "was damaged; replaced by checkpoint2.pt" in repair.repair(tmp_path)[0]
    assert torch.equal(load_checkpoint(last)["model"]["encoder.embed_tokens.weight"], weight)


def test_an_entry_marked_as_a_folder_is_noticed(tmp_path, save_checkpoint_file) -> None:
    # torch leaves such a tensor as the memory was, with every checksum right
    path = save_checkpoint_file(tmp_path / "1.pt")
    content = bytearray(path.read_bytes())
    content[content.rindex(b"1/data/0") - 46 + 38] |= 0x10  # external attributes, in the index
    path.write_bytes(content)
    with pytest.raises(CommandError, match="damaged"):
        load_checkpoint(path)


def test_an_average_is_not_averaged_again(tmp_path, inputs) -> None:
    averaged(*inputs, output=tmp_path / "averaged.pt")
    with pytest.raises(CommandError, match=r"averaged\.pt is an average itself"):
        averaged(*inputs, tmp_path / "averaged.pt", output=tmp_path / "out.pt")
