"""norm-plugin fold: what it writes, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from tiny_run import run_state

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.checkpoints.fold import main
from norm_plugin.checkpoints.repair import repair
from norm_plugin.io.command_line import CommandError

FLAGS = ("--norm-type=powernorm", "--norm-layer-scale-groups=0", "--norm-warmup-updates=2")
PRE = "--norm-placement=pre"


@pytest.fixture
def save(data, tmp_path):
    """Write a checkpoint of a run with these flags; ``change`` may alter what it holds."""

    def write(*flags, change=lambda state: None, name="run.pt"):
        state = run_state(data, *(flags or (*FLAGS, PRE)))
        for entry, value in state["model"].items():
            if entry.endswith("psi2"):
                value.copy_(torch.linspace(0.5, 2, len(value)))
        change(state)
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return write


def logits(checkpoint):
    model, _, _ = build_model(checkpoint)
    tokens = torch.tensor([[1, 5, 6, 7, 2], [8, 9, 4, 11, 2]])
    return model.eval()(tokens, tokens.ne(1).sum(1), tokens)[0]


def as_yaml_has_them(state):
    """fairseq-hydra-train stores the keys of ``model`` as a mapping."""
    kinds = ("_name", "norm_", "encoder_", "decoder_", "share_", "dropout")
    flags = vars(state["cfg"]["model"])
    state["cfg"]["model"] = {name: v for name, v in flags.items() if name.startswith(kinds)}


@pytest.mark.parametrize("change", [lambda state: None, as_yaml_has_them], ids=["flags", "yaml"])
def test_it_loads_like_any_other(save, tmp_path, change, capsys):
    checkpoint, output = save(change=change), tmp_path / "folded.pt"
    assert main([str(checkpoint), "--output", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("encoder-self: powernorm folded, 1 into 3 linear maps (q_proj")
    assert lines[-1] == f"folded {checkpoint} into {output}"
    # Folded weights are rounded once more (6e-8), in sums of 8 or 16 terms of some ten maps: tens
    # of roundings of logits of size 1. A norm left out moves them by tenths.
    torch.testing.assert_close(logits(output), logits(checkpoint), rtol=1e-5, atol=1e-5)
    assert type(load_checkpoint(output)["cfg"]["model"]) is type(
        load_checkpoint(checkpoint)["cfg"]["model"]
    )


def halve(state):
    state["model"] = {name: value.half() for name, value in state["model"].items()}


def test_entries_keep_their_dtype(save, tmp_path):
    checkpoint, output = save(change=halve), tmp_path / "folded.pt"
    main([str(checkpoint), "--output", str(output)])
    assert {v.dtype for v in load_checkpoint(output)["model"].values()} == {torch.float16}
    # one more rounding to half precision (11 bits: 5e-4) of weights and biases, in ten maps, of
    # either sign
    torch.testing.assert_close(logits(output), logits(checkpoint), rtol=1e-2, atol=1e-2)


def test_the_data_may_lie_elsewhere(save, tmp_path, data):
    def move(state):
        state["cfg"]["task"]["data"] = "/nowhere"

    checkpoint, output = save(change=move), tmp_path / "folded.pt"
    with pytest.raises(CommandError, match="/nowhere, .* does not exist; .* by --data"):
        main([str(checkpoint), "--output", str(output)])
    main([str(checkpoint), "--output", str(output), "--data", str(data)])
    assert output.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--norm-type=powernorm", "--norm-warmup-updates=2", PRE), "its RMS pre-scaling divides"),
        ((*FLAGS, "--norm-placement=post"), "its output is the residual stream"),
        (("--norm-type=layernorm", PRE), "computed from each input, in"),
        (("--norm-type=none", PRE), "it has no norms"),
        (("--arch=transformer",), "TransformerModel has no norms to fold"),
    ],
)
def test_a_checkpoint_without_a_norm_to_fold_is_refused(save, tmp_path, flags, message):
    checkpoint = save(*flags)
    with pytest.raises(CommandError, match=message):
        main([str(checkpoint), "--output", str(tmp_path / "folded.pt")])
    assert list(tmp_path.iterdir()) == [checkpoint]


def diverge(state):
    next(iter(state["model"].values())).view(-1)[0] = float("nan")


def test_weights_that_are_not_finite_are_refused(save, tmp_path):
    checkpoint = save(change=diverge)
    with pytest.raises(CommandError, match="has NaN or infinite values: the run has diverged"):
        main([str(checkpoint), "--output", str(tmp_path / "folded.pt")])
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_it_does_not_overwrite_what_it_reads(save):
    checkpoint = save()
    with pytest.raises(CommandError, match="is also the input; choose another name"):
        main([str(checkpoint), "--output", str(checkpoint)])


def test_a_run_never_resumes_from_a_folded_one(save, tmp_path):
    checkpoint = save(name="checkpoint1.pt")
    main(
        [str(checkpoint), "--output", str(tmp_path / "checkpoint0_folded.pt")]
    )  # the first by name
    (message,) = repair(tmp_path)
    assert "was missing; replaced by checkpoint1.pt" in message
    assert "folded_norms" not in load_checkpoint(tmp_path / "checkpoint_last.pt")
