"""``norm-plugin average``: the mean, its inputs, and what it refuses."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest
import torch
from fairseq.modules import AdaptiveInput

from norm_plugin.checkpoints.average import average_checkpoints, main, select_checkpoints
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.io import files
from norm_plugin.io.command_line import CommandError


def average(*inputs: object, output: Path, flags: tuple[object, ...] = ()) -> None:
    """The command with these inputs and flags."""
    main([str(word) for word in ("--inputs", *inputs, "--output", output, *flags)])


def folder_of_epochs(folder: Path, save, count: int) -> Path:
    for epoch in range(1, count + 1):
        save(folder / f"checkpoint{epoch}.pt", updates=10 * epoch)
    return folder


def test_mean_of_parameters_and_float_buffers(tmp_path, save_checkpoint_file) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(5, 7, generator=generator) for _ in range(3)]
    paths = [
        save_checkpoint_file(tmp_path / f"{i}.pt", updates=i, w=tensor, running_var=tensor + 1)
        for i, tensor in enumerate(tensors)
    ]
    model = average_checkpoints(paths)["model"]
    expected = torch.stack([tensor.double() for tensor in tensors]).mean(0)
    # Summed in float64, so the only rounding is the cast: the result is the nearest float32.
    assert torch.equal(model["w"], expected.float())
    shifted = torch.stack([(tensor + 1).double() for tensor in tensors]).mean(0)
    assert torch.equal(model["running_var"], shifted.float())


def test_counters_and_switches_come_from_the_newest(tmp_path, save_checkpoint_file) -> None:
    def save(name: str, updates: int) -> Path:
        return save_checkpoint_file(
            tmp_path / name,
            updates=updates,
            num_updates=torch.tensor(updates),
            warm=torch.tensor(updates > 10),
            w=torch.tensor([float(updates)]),
        )

    # The newest is the one with the most updates, wherever it is named.
    state = average_checkpoints([save("a.pt", 5), save("c.pt", 40), save("b.pt", 9)])
    assert state["model"]["num_updates"].item() == 40
    assert state["model"]["num_updates"].dtype == torch.int64
    assert state["model"]["warm"].item() is True
    assert state["model"]["w"].item() == 18.0
    assert state["optimizer_history"][-1]["num_updates"] == 40


def test_tied_tensors_stay_tied_if_their_means_are_equal(tmp_path, save_checkpoint_file) -> None:
    for i in (1, 2):
        tied, newly_tied = torch.full((3, 2), float(i)), torch.full((2,), float(i))
        save_checkpoint_file(
            tmp_path / f"{i}.pt",
            updates=i,
            embed=tied,
            project=tied,
            a=newly_tied,
            b=newly_tied if i == 2 else torch.zeros(2),
        )
    model = average_checkpoints([tmp_path / "1.pt", tmp_path / "2.pt"])["model"]
    assert torch.equal(model["embed"], torch.full((3, 2), 1.5))
    assert model["embed"].data_ptr() == model["project"].data_ptr()
    assert model["a"].tolist() == [1.5, 1.5]
    assert model["b"].tolist() == [1.0, 1.0]


def test_the_output_keeps_settings_and_drops_the_optimizer(tmp_path, save_checkpoint_file) -> None:
    folder_of_epochs(tmp_path, save_checkpoint_file, 3)
    average(tmp_path, output=tmp_path / "avg.pt", flags=("--last-epochs", 2))
    state = load_checkpoint(tmp_path / "avg.pt")
    assert state["averaged_from"] == ["checkpoint2.pt", "checkpoint3.pt"]
    assert "last_optimizer_state" not in state
    assert state["cfg"]["model"].dropout == 0.1
    assert torch.equal(state["model"]["weight"], torch.full((2, 3), 25.0))


def test_newest_are_chosen_by_number(tmp_path, save_checkpoint_file) -> None:
    for name in ("checkpoint9", "checkpoint10", "checkpoint_1_99", "checkpoint_2_100"):
        save_checkpoint_file(tmp_path / f"{name}.pt")
    for name in ("checkpoint_best", "checkpoint_last", "checkpoint.best_loss_1.00"):
        save_checkpoint_file(tmp_path / f"{name}.pt")

    def names(*choice) -> list[str]:
        return [path.name for path in select_checkpoints(tmp_path, *choice)]

    assert names("epoch", 1, None) == ["checkpoint10.pt"]
    assert names("epoch", 2, None) == ["checkpoint9.pt", "checkpoint10.pt"]
    assert names("epoch", 1, 9) == ["checkpoint9.pt"]
    assert names("update", 2, None) == ["checkpoint_1_99.pt", "checkpoint_2_100.pt"]
    assert names("update", 1, 99) == ["checkpoint_1_99.pt"]


def test_too_few_checkpoints(tmp_path, save_checkpoint_file) -> None:
    folder_of_epochs(tmp_path, save_checkpoint_file, 2)
    message = f"^3 epoch checkpoints are needed, but 2 are in {tmp_path}.*--keep-last-epochs"
    with pytest.raises(CommandError, match=message):
        average(tmp_path, output=tmp_path / "avg.pt", flags=("--last-epochs", 3))
    assert not (tmp_path / "avg.pt").exists()


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "text", "not fairseq's"])
def test_a_bad_input_is_named(tmp_path, save_checkpoint_file, truncate, damage) -> None:
    folder_of_epochs(tmp_path, save_checkpoint_file, 3)
    bad = tmp_path / "checkpoint2.pt"
    if damage == "missing":
        bad.unlink()
    elif damage == "truncated":
        truncate(bad)
    elif damage == "not fairseq's":
        torch.save({"weights": torch.ones(1)}, bad)
    else:
        bad.write_bytes(b"" if damage == "empty" else b"hello\n")
    inputs = [tmp_path / f"checkpoint{epoch}.pt" for epoch in (1, 2, 3)]
    with pytest.raises(CommandError, match=str(bad)):
        average(*inputs, output=tmp_path / "avg.pt")
    assert not (tmp_path / "avg.pt").exists()


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"v": torch.ones(2)}, r"'v' is of shape \(2,\) in 2.pt, but absent in 1.pt"),
        ({"w": torch.ones(3)}, r"'w' is of shape \(3,\) in 2.pt, but of shape \(2,\) in 1.pt"),
        ({"w": torch.ones(2, dtype=torch.int64)}, "'w' is not averaged in 2.pt, but of shape"),
    ],
)
def test_another_model_is_refused(tmp_path, save_checkpoint_file, second, named) -> None:
    first = save_checkpoint_file(tmp_path / "1.pt", w=torch.ones(2))
    other = save_checkpoint_file(tmp_path / "2.pt", **second)
    message = f"^cannot average {other} with 1.pt: {named}.*checkpoints of one run"
    with pytest.raises(CommandError, match=message):
        average(first, other, output=tmp_path / "avg.pt")


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, save_checkpoint_file, value) -> None:
    good = save_checkpoint_file(tmp_path / "1.pt", w=torch.ones(3), b=torch.ones(1))
    weights = torch.tensor([1.0, value, 1.0])
    bad = save_checkpoint_file(tmp_path / "2.pt", w=weights, b=torch.ones(1))
    with pytest.raises(CommandError, match=f"^'w' of {bad} has NaN or infinite values"):
        average(good, bad, output=tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_memory_that_fairseq_never_fills_may_hold_anything(tmp_path, save_checkpoint_file) -> None:
    paths = []
    for updates, garbage in ((1, float("nan")), (2, float("inf"))):
        embeddings = AdaptiveInput(20, 1, 8, 4.0, 8, [10, 20])
        unread = [
            buffer for name, buffer in embeddings.named_buffers() if buffer.is_floating_point()
        ]
        assert unread
        for buffer in unread:  # torch.FloatTensor(1): what the memory held before
            buffer.fill_(garbage)
        state = {f"decoder.embed_tokens.{key}": v for key, v in embeddings.state_dict().items()}
        paths.append(save_checkpoint_file(tmp_path / f"{updates}.pt", updates=updates, **state))
    model = average_checkpoints(paths)["model"]
    newest = load_checkpoint(paths[1])["model"]
    assert list(model) == list(newest)
    assert all(torch.isfinite(v).all() for key, v in model.items() if key.endswith("weight"))


@pytest.mark.parametrize("kind", ["path", "copy"])
def test_a_checkpoint_given_twice_is_refused(tmp_path, save_checkpoint_file, kind) -> None:
    path = save_checkpoint_file(tmp_path / "checkpoint1.pt", updates=1)
    other = save_checkpoint_file(tmp_path / "checkpoint2.pt", updates=2)
    again = tmp_path / "checkpoint_best.pt"
    if kind == "path":
        again = path
    else:
        again.write_bytes(path.read_bytes())
    with pytest.raises(CommandError, match=f"^{again} is the same checkpoint as {path}, and would"):
        average(path, other, again, output=tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_flags_that_do_not_fit_the_inputs(tmp_path, save_checkpoint_file) -> None:
    folder_of_epochs(tmp_path, save_checkpoint_file, 2)
    path, output = tmp_path / "checkpoint1.pt", tmp_path / "avg.pt"
    for inputs, flags, out, message in (
        ((tmp_path,), (), output, "add --last-epochs"),
        ((path,), ("--last-epochs", 1), output, "select from a folder"),
        ((path, tmp_path), (), output, "one folder, or only files"),
        ((path,), (), path, "is also an input"),
        ((path,), (), tmp_path / "no" / "avg.pt", "does not exist"),
    ):
        with pytest.raises(CommandError, match=message):
            average(*inputs, output=out, flags=flags)


class FullDisk(io.FileIO):
    """A file on a disk that has room for its first write only."""

    def write(self, data):
        if self.tell():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_model_without_running_statistics_is_told(tmp_path, save_checkpoint_file, capsys) -> None:
    paths = [save_checkpoint_file(tmp_path / f"{i}.pt", updates=i) for i in (1, 2)]
    average(*paths, output=tmp_path / "out.pt", flags=("--running-stats", "last"))
    assert capsys.readouterr().out.endswith("this model has no running statistics\n")


def test_a_full_disk_leaves_the_old_output(tmp_path, save_checkpoint_file, monkeypatch) -> None:
    folder_of_epochs(tmp_path, save_checkpoint_file, 2)
    output = tmp_path / "avg.pt"
    output.write_text("old")

    monkeypatch.setattr(files, "open", FullDisk, raising=False)
    with pytest.raises(CommandError, match=f"^cannot write {output}: No space left on device"):
        average(tmp_path, output=output, flags=("--last-epochs", 2))
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "avg.pt",
        "checkpoint1.pt",
        "checkpoint2.pt",
    ]
