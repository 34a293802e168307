"""Claims on batches of a corpus, and on the checkpoint of a run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from tiny_run import run_state, write_dictionaries, write_pairs

from norm_plugin.analysis.theory import trained_layers
from norm_plugin.analysis.theory.claim import Options
from norm_plugin.analysis.theory.stacks import (
    REAL,
    SENTENCES,
    random_batches,
    real_batches,
    stack_pass,
)
from norm_plugin.commands.command_line import CommandError

PAIRS = 200
LAYERS = ("--encoder-layers=2", "--decoder-layers=2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_pairs(write_dictionaries(tmp_path_factory.mktemp("corpus") / "bin"), PAIRS)


@pytest.fixture(scope="module")
def checkpoint(corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "checkpoint_last.pt"
    torch.save(run_state(corpus, *LAYERS, "--norm-placement=post", "--dropout=0.5"), path)
    return path


def test_a_batch_of_a_corpus_is_its_next_sentences(corpus):
    batches = real_batches(corpus, seeds=3)
    words, ends = batches.source_words, []
    assert batches.kind == REAL
    for seed in range(3):
        source, previous, target = batches.draw(seed)
        assert len(source) == len(target) == SENTENCES
        assert previous.shape == target.shape
        assert (source[:, -1] == words.eos()).all()  # padded on the left
        ends.append(source.ne(words.pad()).sum())
    assert len({int(one) for one in ends}) > 1


def test_padding_is_no_position(corpus):
    batches = real_batches(corpus, seeds=1)
    real = batches.draw(0).source.ne(batches.source_words.pad()).sum()
    found = stack_pass("pre", "layernorm", 1, 8, batches, 0)
    assert found.outputs.shape == (2, real)
    assert (found.outputs > 0).all()


def test_a_corpus_that_is_too_small_or_broken_is_refused(corpus, tmp_path):
    with pytest.raises(CommandError, match=f"has {PAIRS} sentences for training, and --seeds 30"):
        real_batches(corpus, seeds=30)
    with pytest.raises(CommandError, match="has no file such as train"):
        real_batches(write_dictionaries(tmp_path / "bin"), seeds=1)


def test_a_checkpoint_shows_the_gradient_of_every_layer(checkpoint):
    options = Options((), main=(), random=random_batches(), checkpoints=(checkpoint,))
    rows = list(trained_layers.measure_once(options))
    places = {(row["stack"], row["layer"], row["seed"]) for row in rows}
    sides = [(side, layer) for side in ("encoder", "decoder") for layer in (1, 2)]
    assert places == {(*one, n) for one in sides for n in range(trained_layers.BATCHES)}
    assert {
        tuple(row[name] for name in trained_layers.STACK if name != "stack") for row in rows
    } == {("post", "layernorm", 90, "checkpoint_last.pt")}
    assert all(row["gradient"] > 0 for row in rows)
    found = verdicts(rows)
    assert [(row["stack"], row["stated"], row["holds"]) for row in found] == [
        ("encoder", "0.816", "-"),
        ("decoder", "0.816", "-"),
    ]
    for row in verdicts([{**row, "gradient": 0.0} for row in rows]):
        assert (row["measured"], row["first layer / last layer"]) == ("undefined", "undefined")
    # without dropout there is nothing random in a pass
    assert list(trained_layers.measure_once(options)) == rows


def test_a_checkpoint_with_a_stack_of_one_layer_is_refused(corpus, tmp_path):
    path = tmp_path / "one.pt"
    torch.save(run_state(corpus, "--encoder-layers=2", "--decoder-layers=1"), path)
    options = Options((), main=(), random=random_batches(), checkpoints=(path,))
    with pytest.raises(CommandError, match=r"one\.pt has a stack of one layer"):
        list(trained_layers.measure_once(options))


def rows_of(gradients, **columns):
    """A row for each layer of the encoder and the decoder, of two batches."""
    where = {"placement": "post", "norm": "layernorm", "updates": 90, **columns}
    return [
        {**where, "stack": stack, "seed": seed, "layer": layer, "gradient": gradient}
        for stack in ("encoder", "decoder")
        for seed in range(2)
        for layer, gradient in enumerate(gradients, start=1)
    ]


def verdicts(rows):
    return list(trained_layers.verdicts(pd.DataFrame(rows)))


def labels(rows):
    """Those of the lines of a figure, and the values of each line."""
    lines = {}

    class Axes:
        def plot(self, layers, means, label, **look):
            assert label not in lines
            lines[label] = list(means)

        def __getattr__(self, name):
            return lambda *words, **more: None

    trained_layers.plot(pd.DataFrame(rows), Axes())
    return lines


def test_two_checkpoints_that_are_otherwise_alike_are_two_models():
    rows = rows_of((1, 2), checkpoint="a/best.pt") + rows_of((4, 1), checkpoint="b/best.pt")
    assert [(row["checkpoint"], row["measured"]) for row in verdicts(rows)] == [
        *[("a/best.pt", "0.500")] * 2,
        *[("b/best.pt", "4.000")] * 2,
    ]
    lines = labels(rows)
    assert lines["post, 90 updates, encoder, a/best.pt"] == [1, 2]
    assert lines["post, 90 updates, encoder, b/best.pt"] == [4, 1]


@pytest.mark.parametrize("columns", [{"placement": "pre"}, {"updates": 91}])
def test_a_checkpoint_is_named_only_where_two_read_the_same(columns):
    rows = rows_of((1, 2), checkpoint="a.pt") + rows_of((4, 1), checkpoint="b.pt", **columns)
    assert not any("checkpoint" in row for row in verdicts(rows))
    assert not any(".pt" in text for text in labels(rows))
    unnamed = [{name: row[name] for name in row if name != "checkpoint"} for row in rows]
    assert verdicts(unnamed) == verdicts(rows)  # a file of before the column
    assert labels(unnamed) == labels(rows)


def test_models_of_two_norms_are_told_apart_without_the_column():
    rows = rows_of((1, 2)) + rows_of((4, 1), norm="rmsnorm")
    assert "post, 90 updates, encoder, rmsnorm" in labels(rows)
    assert len(labels(rows)) == 4


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["run/best.pt"], ["best.pt"]),
        (["a/best.pt", "a/last.pt"], ["best.pt", "last.pt"]),
        (["a/x/best.pt", "b/x/best.pt", "c/last.pt"], ["a/x/best.pt", "b/x/best.pt", "last.pt"]),
        (["a/best.pt", "b/../a/best.pt"], ["best.pt"]),
        (["/best.pt", "/run/best.pt"], ["/best.pt", "run/best.pt"]),
        ([], []),
    ],
)
def test_checkpoints_have_short_names_that_differ(given, names):
    assert list(trained_layers.short_names(map(Path, given))) == names
