"""norm-plugin repair: a folder that a kill has left can be resumed from."""

from __future__ import annotations

import pytest
import torch

from norm_plugin.checkpoints.files import FOLDED, load_checkpoint, num_updates
from norm_plugin.checkpoints.repair import main, repair
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write


def last_updates(folder) -> int | None:
    return num_updates(load_checkpoint(folder / "checkpoint_last.pt"))


def test_silent_when_all_is_well(tmp_path, save_checkpoint_file, capsys) -> None:
    for name in ("checkpoint1.pt", "checkpoint_last.pt", "checkpoint_best.pt"):
        save_checkpoint_file(tmp_path / name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_truncated_last_is_replaced_by_the_furthest(
    tmp_path, save_checkpoint_file, truncate, capsys
) -> None:
    # By the updates inside, not by the order of the names.
    save_checkpoint_file(tmp_path / "checkpoint1.pt", updates=30)
    save_checkpoint_file(tmp_path / "checkpoint2.pt", updates=60)
    save_checkpoint_file(tmp_path / "checkpoint_2_40.pt", updates=40)
    save_checkpoint_file(tmp_path / "checkpoint_1_9.pt", updates=9)
    truncate(save_checkpoint_file(tmp_path / "checkpoint_last.pt", updates=70))
    assert main([str(tmp_path)]) == 0
    assert "damaged; replaced by checkpoint2.pt" in capsys.readouterr().err
    assert last_updates(tmp_path) == 60
    assert "last_optimizer_state" in load_checkpoint(tmp_path / "checkpoint_last.pt")


def test_a_run_that_was_resumed_says_its_updates_last(tmp_path, save_checkpoint_file) -> None:
    # At each resumption fairseq puts an entry behind those of the optimizers before.
    for name, history in (("checkpoint1.pt", (90, 100)), ("checkpoint2.pt", (10, 200))):
        state = load_checkpoint(save_checkpoint_file(tmp_path / name))
        state["optimizer_history"] = [{"num_updates": updates} for updates in history]
        torch.save(state, tmp_path / name)
    repair(tmp_path)
    assert last_updates(tmp_path) == 200


def test_a_bare_pickle_of_older_torch_is_whole(tmp_path, save_checkpoint_file) -> None:
    for name, updates in (("checkpoint1.pt", 3), ("checkpoint_last.pt", 4)):
        path = save_checkpoint_file(tmp_path / name, updates=updates)
        state = load_checkpoint(path)
        torch.save(state, path, _use_new_zipfile_serialization=False)
    assert repair(tmp_path) == []
    assert (tmp_path / "checkpoint1.pt").exists()
    assert last_updates(tmp_path) == 4


def test_a_damaged_last_without_another_is_removed(
    tmp_path, save_checkpoint_file, truncate
) -> None:
    truncate(save_checkpoint_file(tmp_path / "checkpoint_last.pt"))
    messages = repair(tmp_path)
    assert len(messages) == 1
    assert "no other checkpoint can replace it" in messages[0]
    assert list(tmp_path.iterdir()) == []


def test_truncated_copies_and_leftovers_are_removed(
    tmp_path, save_checkpoint_file, truncate
) -> None:
    for name in ("checkpoint1.pt", "checkpoint_last.pt"):
        save_checkpoint_file(tmp_path / name, updates=4)
    for name in ("checkpoint2.pt", "checkpoint_best.pt"):
        truncate(save_checkpoint_file(tmp_path / name))
    (tmp_path / "checkpoint3.pt").touch()
    (tmp_path / "checkpoint3.pt.tmp").touch()
    with atomic_write(tmp_path / "averaged.pt") as stream:
        leftover = tmp_path / stream.name
    (tmp_path / "averaged.pt").unlink()
    leftover.touch()
    (tmp_path / "notes.tmp").touch()
    assert len(repair(tmp_path)) == 5
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["checkpoint1.pt", "checkpoint_last.pt", "notes.tmp"]


@pytest.mark.parametrize("made", [{"averaged_from": ["checkpoint1.pt"]}, {FOLDED: ["norm"]}])
def test_what_was_made_of_checkpoints_is_nothing_to_resume_from(
    made, tmp_path, save_checkpoint_file
) -> None:
    save_checkpoint_file(tmp_path / "checkpoint1.pt", updates=5)
    state = load_checkpoint(tmp_path / "checkpoint1.pt")
    state["optimizer_history"][-1]["num_updates"] = 9
    torch.save({**state, **made}, tmp_path / "checkpoint_made.pt")
    repair(tmp_path)
    assert last_updates(tmp_path) == 5


class Unknown:
    """A class that the safe loader refuses."""


def test_a_whole_file_that_cannot_be_loaded_stays(tmp_path, save_checkpoint_file) -> None:
    save_checkpoint_file(tmp_path / "checkpoint1.pt")
    last = tmp_path / "checkpoint_last.pt"
    torch.save({"model": {}, "cfg": Unknown()}, last)
    before = last.read_bytes()
    with pytest.raises(CommandError, match=r"checkpoint_last\.pt"):
        repair(tmp_path)
    assert last.read_bytes() == before
