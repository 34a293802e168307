"""The gradient of each layer of a checkpoint."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from tiny_run import run_state

from norm_plugin.io.command_line import CommandError
from papers.theory import trained, trained_layers
from papers.theory.claim import Options


def options_for(folder, corpus, *flags):
    """The options of a theory run on a checkpoint with these flags."""
    path = folder / "checkpoint_last.pt"
    torch.save(run_state(corpus, "--encoder-layers=2", *flags), path)
    return Options((), main=(), checkpoints=(path,))


def test_a_checkpoint_shows_the_gradient_of_every_layer(corpus, tmp_path):
    flags = ("--decoder-layers=2", "--norm-placement=post", "--dropout=0.5")
    options = options_for(tmp_path, corpus, *flags)
    frame = pd.DataFrame(trained_layers.measure_once(options))
    assert len(frame) == 2 * 2 * trained.BATCHES
    assert not frame.duplicated(["stack", "layer", "seed"]).any()
    same = frame[["placement", "norm", "updates", "checkpoint"]].drop_duplicates()
    assert same.to_numpy().tolist() == [["post", "layernorm", 90, str(options.checkpoints[0])]]
    assert (frame["gradient"] > 0).all()
    rows = list(trained_layers.verdicts(frame))
    assert [(row["stack"], row["stated"], row["holds"]) for row in rows] == [
        ("encoder", "0.816", "-"),
        ("decoder", "0.816", "-"),
    ]
    for row in trained_layers.verdicts(frame.assign(gradient=0.0)):
        assert (row["measured"], row["first layer / last layer"]) == ("undefined", "undefined")
    # without dropout there is nothing random in a pass
    again = pd.DataFrame(trained_layers.measure_once(options))
    pd.testing.assert_frame_equal(again, frame)


def test_a_checkpoint_with_a_stack_of_one_layer_is_refused(corpus, tmp_path):
    options = options_for(tmp_path, corpus, "--decoder-layers=1")
    with pytest.raises(CommandError, match=r"checkpoint_last\.pt has a stack of one layer"):
        list(trained_layers.measure_once(options))


def frame_of(*runs):
    """Two batches of each of these runs: the gradients of its layers, and its other columns."""
    where = {"placement": "post", "norm": "layernorm", "updates": 90}
    return pd.DataFrame(
        {**where, **columns, "stack": stack, "seed": seed, "layer": layer, "gradient": gradient}
        for gradients, columns in runs
        for stack in ("encoder", "decoder")
        for seed in range(2)
        for layer, gradient in enumerate(gradients, start=1)
    )


def test_two_checkpoints_that_are_otherwise_alike_are_two_models():
    frame = frame_of(((1, 2), {"checkpoint": "a/best.pt"}), ((4, 1), {"checkpoint": "b/best.pt"}))
    rows = list(trained_layers.verdicts(frame))
    assert [(row["checkpoint"], row["measured"]) for row in rows] == [
        *[("a/best.pt", "0.500")] * 2,
        *[("b/best.pt", "4.000")] * 2,
    ]


@pytest.mark.parametrize("columns", [{"placement": "pre"}, {"updates": 91}, {"norm": "rmsnorm"}])
def test_a_checkpoint_is_named_only_where_two_read_the_same(columns):
    named = frame_of(((1, 2), {"checkpoint": "a"}), ((4, 1), {"checkpoint": "b", **columns}))
    unnamed = named.drop(columns="checkpoint")  # a file of before the column
    rows = list(trained_layers.verdicts(named))
    assert not any("checkpoint" in row for row in rows)
    assert list(trained_layers.verdicts(unnamed)) == rows
