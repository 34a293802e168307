"""Claims on batches of a corpus, and on the checkpoint of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_run import run_state, write_dictionaries, write_pairs

from norm_plugin.analysis.theory import trained_layers
from norm_plugin.analysis.theory.batches import REAL, SENTENCES, random_batches, real_batches
from norm_plugin.analysis.theory.claim import Options
from norm_plugin.analysis.theory.stack_pass import stack_pass
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
    rows = trained_layers.CLAIM.measure_once(options)
    places = {(row["stack"], row["layer"], row["seed"]) for row in rows}
    sides = [(side, layer) for side in ("encoder", "decoder") for layer in (1, 2)]
    assert places == {(*one, n) for one in sides for n in range(trained_layers.BATCHES)}
    assert {
        tuple(row[name] for name in trained_layers.STACK if name != "stack") for row in rows
    } == {("post", "layernorm", 90, "checkpoint_last.pt")}
    assert all(row["gradient"] > 0 for row in rows)
    assert len(trained_layers.find(rows).sentences) == 2
    none = trained_layers.find([{**row, "gradient": 0.0} for row in rows])
    assert all("a gradient is 0, so there is no factor" in one for one in none.sentences)
    assert {row[-2:] for row in none.tables[0].rows} == {("undefined", "undefined")}
    # without dropout there is nothing random in a pass
    assert trained_layers.CLAIM.measure_once(options) == rows


def rows_of(gradients, **columns):
    """A row for each layer of the encoder and the decoder, of two batches."""
    where = {"placement": "post", "norm": "layernorm", "updates": 90, **columns}
    return [
        {**where, "stack": stack, "seed": seed, "layer": layer, "gradient": gradient}
        for stack in ("encoder", "decoder")
        for seed in range(2)
        for layer, gradient in enumerate(gradients, start=1)
    ]


def labels(rows):
    """Those of the lines of a figure, and the values of each line."""
    lines = {}

    class Axes:
        def plot(self, layers, means, label, **look):
            assert label not in lines
            lines[label] = means

        def __getattr__(self, name):
            return lambda *words, **more: None

    trained_layers.plot(rows, Axes())
    return lines


def test_two_checkpoints_that_are_otherwise_alike_are_two_models():
    rows = rows_of((1, 2), checkpoint="a/best.pt") + rows_of((4, 1), checkpoint="b/best.pt")
    found = trained_layers.find(rows)
    first, _, second, _ = found.sentences
    assert "`post`, encoder, after 90 updates (a/best.pt): " in first and "by 0.500 (" in first
    assert "`post`, encoder, after 90 updates (b/best.pt): " in second and "by 4.000 (" in second
    (table,) = found.tables
    assert table.header[0] == "checkpoint"
    assert [row[0] for row in table.rows] == ["a/best.pt"] * 2 + ["b/best.pt"] * 2
    lines = labels(rows)
    assert lines["post, 90 updates, encoder, a/best.pt"] == [1, 2]
    assert lines["post, 90 updates, encoder, b/best.pt"] == [4, 1]


@pytest.mark.parametrize("columns", [{"placement": "pre"}, {"updates": 91}])
def test_a_checkpoint_is_named_only_where_two_read_the_same(columns):
    rows = rows_of((1, 2), checkpoint="a.pt") + rows_of((4, 1), checkpoint="b.pt", **columns)
    found = trained_layers.find(rows)
    assert not any(".pt" in text for text in (*found.sentences, *labels(rows)))
    assert "checkpoint" not in found.tables[0].header
    unnamed = [{name: row[name] for name in row if name != "checkpoint"} for row in rows]
    assert trained_layers.find(unnamed) == found  # a file of before the column
    assert labels(unnamed) == labels(rows)


def test_models_of_two_norms_are_told_apart_without_the_column():
    rows = rows_of((1, 2)) + rows_of((4, 1), norm="rmsnorm")
    found = trained_layers.find(rows)
    assert "after 90 updates (layernorm): " in found.sentences[0]
    assert "after 90 updates (rmsnorm): " in found.sentences[2]
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
