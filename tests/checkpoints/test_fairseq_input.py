"""What fairseq raises about bad input is one line; a fault of our own is not hidden."""

from __future__ import annotations

import itertools

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.trainer import Trainer
from tiny_run import run_state, write_dictionaries, write_pairs

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.fairseq_input import fairseq_errors, load_dictionary, train_batches
from norm_plugin.io.command_line import CommandError, DivergedError, at_least
from norm_plugin.models.plan import SiteChoice


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # fairseq has an assertion without a message here
        (
            lambda: checkpoint_utils.load_model_ensemble_and_task(["a", "b"], state={}),
            "AssertionError at assert state is None or len",
        ),
        (lambda: checkpoint_utils.load_checkpoint_to_cpu(None), "cannot load it: .*NoneType"),
        (lambda: raises(Exception("sentence 7 is too long")), "sentence 7 is too long"),
        (lambda: raises(ValueError("the sides differ")), "the sides differ"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(CommandError, match=message), fairseq_errors("load it"):
        call()


def test_what_is_one_line_already_stays_so():
    with pytest.raises(DivergedError, match="^it has diverged$"), fairseq_errors("load it"):
        raise DivergedError("it has diverged")


def test_a_fault_of_this_package_is_not_hidden(tmp_path, data, monkeypatch):
    with pytest.raises(AttributeError), fairseq_errors("load it"):
        at_least(1)(None)
    path = tmp_path / "run.pt"
    torch.save(run_state(data), path)
    monkeypatch.setattr(SiteChoice, "build", lambda self, dim: at_least(1)(None))
    with pytest.raises(AttributeError):  # the checkpoint is not called damaged
        build_model(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the dictionary .*No such file"),
        (b"", "is empty; give the dict.txt of the model's data"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"a 1\na 1\n", "Duplicate word found"),
        (b"a b\n", "Incorrect dictionary format"),
        (b"\n", "Incorrect dictionary format"),
        (b"\xff\xfe 1\n", "cannot read the dictionary .*utf-8"),
    ],
)
def test_a_dictionary_that_cannot_be_used(content, message, tmp_path):
    path = tmp_path / "dict.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CommandError, match=message):
        load_dictionary(path)


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(b"\xef\xbb\xbfa 1\nb 1\n")
    assert load_dictionary(path).indices["a"] == Dictionary().nspecial


@pytest.mark.parametrize("sizes", [["--max-tokens=64"], ["--max-tokens=500", "--batch-size=8"]])
def test_the_training_batches_are_those_of_the_trainer(tmp_path, data, sizes) -> None:
    path = tmp_path / "run.pt"
    torch.save(run_state(data, "--norm-type=batchnorm", "--seed=11", *sizes), path)
    model, cfg, task = build_model(path)
    batches = list(itertools.islice(train_batches(model, cfg, task), 12))
    criterion = task.build_criterion(cfg.criterion)
    epochs = Trainer(cfg, task, model, criterion).get_train_iterator(epoch=1)
    first = list(epochs.next_epoch_itr())
    assert len(first) < len(batches)
    for batch, expected in zip(batches, [*first, *epochs.next_epoch_itr()]):
        assert torch.equal(batch["id"], expected["id"])


def test_training_data_that_does_not_fit(tmp_path, data) -> None:
    path = tmp_path / "run.pt"
    torch.save(run_state(data, "--norm-type=batchnorm"), path)

    def first_batch(folder):
        return next(train_batches(*build_model(path, folder)))

    alone = write_dictionaries(tmp_path / "alone")
    cannot = f"cannot make training batches of the data in {alone}: Dataset not found: train"
    with pytest.raises(CommandError, match=cannot):
        first_batch(alone)
    cut = write_pairs(write_dictionaries(tmp_path / "cut"), 20)
    (cut / "train.en-de.de.bin").write_bytes(b"abc")
    with pytest.raises(CommandError, match="cannot read the batches of the data in"):
        first_batch(cut)
    few = write_pairs(write_dictionaries(tmp_path / "few"), 5)  # batches are of eight
    with pytest.raises(CommandError, match=f"the training data in {few} is less than one"):
        first_batch(few)
