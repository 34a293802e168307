"""Claims on batches of a corpus, and on the checkpoint of a run."""

from __future__ import annotations

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
    assert {(row["placement"], row["norm"], row["updates"]) for row in rows} == {
        ("post", "layernorm", 90)
    }
    assert all(row["gradient"] > 0 for row in rows)
    assert len(trained_layers.find(rows).sentences) == 2
    none = trained_layers.find([{**row, "gradient": 0.0} for row in rows])
    assert all("a gradient is 0, so there is no factor" in one for one in none.sentences)
    assert {row[-2:] for row in none.tables[0].rows} == {("undefined", "undefined")}
    # without dropout there is nothing random in a pass
    assert trained_layers.CLAIM.measure_once(options) == rows
