"""What a checkpoint shows at the norms of its encoder."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from tiny_run import run_state

from papers.theory import assumption_two, gain_over_psi, trained
from papers.theory.claim import Options


@pytest.fixture(scope="module")
def checkpoint(corpus, tmp_path_factory):
    """A run with PowerNorm under pre-norm, still in the warm-up of its norms."""
    folder = tmp_path_factory.mktemp("run")
    flags = ("--norm-type=powernorm", "--norm-placement=pre", "--norm-warmup-updates=100")
    flags += ("--encoder-layers=2", "--decoder-layers=1", "--dropout=0.5")
    state = run_state(corpus, *flags)
    for name in state["model"]:
        if name.startswith("encoder") and name.endswith("layer_norm.weight"):
            state["model"][name].fill_(0.5)
    torch.save(state, folder / "checkpoint_last.pt")
    return folder / "checkpoint_last.pt"


def test_a_checkpoint_shows_the_gain_and_x_hat_at_every_norm_of_its_encoder(checkpoint):
    options = Options((), main=(), checkpoints=(checkpoint,))
    for claim in (gain_over_psi, assumption_two):
        frame = pd.DataFrame(claim.measure_once(options))
        assert len(frame) == 5 * trained.BATCHES  # two in each layer, one after the stack
        assert not frame.duplicated(["site", "seed"]).any()
        same = frame[["model", "norm", "layer_scale", "placement"]].drop_duplicates()
        assert same.to_numpy().tolist() == [["90 updates", "powernorm", 1, "pre"]]
        pd.testing.assert_frame_equal(pd.DataFrame(claim.measure_once(options)), frame)
    # in the warm-up x is divided by psi_B; the pre-scaling makes the mean of psi_B^2 be 1
    assert frame["mean_length2"].to_numpy() == pytest.approx(frame["channels"], rel=1e-3)
    gains = pd.DataFrame(gain_over_psi.measure_once(options))
    assert gains["identity_error"].max() < 1e-9
    assert (gains["least"] < 0.5).all() and (gains["largest"] > 0.5).all()


def test_the_norm_is_as_it_was_before_its_batch(checkpoint):
    sites = list(trained.power_norm_sites(checkpoint, None))
    _, _, at = sites[0]
    first, second, *_ = [norm for row, norm, _ in sites if row["site"] == at.site]
    stored = torch.load(checkpoint, weights_only=False)["model"][f"{at.site}.psi2"]
    torch.testing.assert_close(first.psi2, stored)
    assert not torch.equal(second.psi2, stored)
