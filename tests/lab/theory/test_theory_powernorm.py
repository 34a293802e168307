"""The claims on PowerNorm's lemmas and its Assumption 2, on cases whose answers are known."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from tiny_run import run_state, write_dictionaries, write_pairs

from norm_lab.theory import assumption_two, batch_gradients, gain_over_psi, trained
from norm_lab.theory.claim import Options
from norm_plugin.norms import build_norm
from norm_plugin.norms.power_norm import PowerNorm

ROUNDING = 1e-12  # float64 sums of a few hundred numbers


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def holds(claim, row):
    """What the verdicts on one measurement say."""
    return [verdict["holds"] for verdict in claim.verdicts(pd.DataFrame([row]))]


# Lemmas 2 and 3


@pytest.mark.parametrize("norm", batch_gradients.LEMMAS)
def test_the_lemmas_are_autograds_gradient_and_the_equations_are_off_by_the_gain_squared(norm):
    x, dy = normal(40, 3) + 0.5, normal(40, 3, seed=1)
    lemma, equation = batch_gradients.errors(norm, x, dy, torch.tensor([0.5, 1.0, 2.0]).double())
    assert lemma < ROUNDING
    assert equation == pytest.approx(1 / 0.5**2 - 1, rel=ROUNDING)
    assert max(batch_gradients.errors(norm, x, dy, torch.ones(3).double())) < ROUNDING


def test_a_gradient_without_its_last_term_is_not_that_of_the_lemma(monkeypatch):
    x, dy, gain = normal(40, 3), normal(40, 3, seed=1), torch.ones(3).double()
    entry = ("Lemma 3", "Eq. 6", lambda x, g: g / x.square().mean(dim=0).sqrt())
    monkeypatch.setitem(batch_gradients.LEMMAS, "powernorm-v", entry)
    assert batch_gradients.errors("powernorm-v", x, dy, gain)[0] > 0.01


# Lemma 1 and Figure 7


def test_the_ratio_is_that_of_the_gain_to_the_root_mean_square():
    x, dy, gain = normal(40, 4), normal(40, 4, seed=1), torch.tensor([1.0, -2.0, 0.5, 1]).double()
    ratio, error = gain_over_psi.ratios(x, dy, gain, groups=0)
    by_hand = gain.abs() / x.square().mean(dim=0).sqrt()
    torch.testing.assert_close(ratio, by_hand, rtol=0, atol=ROUNDING)
    assert error < ROUNDING


def test_after_a_layer_scale_the_mean_of_psi_squared_over_the_channels_is_1():
    """So with gamma = 1 not every channel can have gamma <= psi_B."""
    x, dy, gain = 7 * normal(40, 4), normal(40, 4, seed=1), torch.ones(4).double()
    ratio, error = gain_over_psi.ratios(x, dy, gain, groups=1)
    # eps = 1e-5 stands beside a mean square of about 49
    assert ratio.pow(-2).mean().item() == pytest.approx(1, rel=1e-5)
    assert ratio.max() > 1 and error < ROUNDING


# Assumption 2 and Lemma 4


def test_the_assumption_is_counted_by_position_and_by_channel():
    x_hat = torch.zeros(4, 2, dtype=torch.float64)
    x_hat[0], x_hat[1, 0] = torch.tensor([4.0, 3.0]), 3.0
    row = assumption_two.of_x_hat(x_hat)
    assert (row["channels"], row["mean_length2"]) == (2, pytest.approx(34 / 4))
    assert (row["largest_length2"], row["largest_square"]) == (25, 16)
    assert (row["positions_within_10"], row["positions_within_100"]) == (0.75, 1)
    assert (row["channels_within_10"], row["channels_within_20"]) == (0.5, 1)


def test_the_mean_length_of_x_hat_is_the_number_of_channels():
    """Whatever the input: so no bound below d can hold for all positions."""
    x_hat = assumption_two.x_hat_of(build_norm("powernorm-v", 32), 3 * normal(50, 32) + 1)
    row = assumption_two.of_x_hat(x_hat)
    assert row["mean_length2"] == pytest.approx(32, rel=1e-4)  # eps = 1e-5 in the root
    assert row["largest_length2"] >= 32


def test_the_bound_of_nu_has_the_constants_of_the_proof():
    x_hat, g = torch.ones(5, 4, dtype=torch.float64), torch.full((5, 4), 3.0).double()
    bound = assumption_two.nu_bound([x_hat, x_hat], [g, g], alpha=0.9)
    c1, c2, c3 = 2.0, 6.0, 0.1  # C3 is that of the first batch, (1 - 0.9) * 1
    k = math.ceil(math.log(0.1 * c3 / (2 * c1**2)) / math.log(0.9))
    c5 = c3 / (2 * 0.1 * 0.9 ** (k - 1))
    by_hand = 0.1 * (2 * c1 * c2 / (0.1 * c5) + k * c1 * c2) * 2  # sqrt(4) for the 4 channels
    assert bound == pytest.approx(by_hand, rel=ROUNDING)
    norm = PowerNorm(4, layer_scale_groups=0, eps=0.0).double().train()
    for _ in range(2):
        (norm(x_hat.requires_grad_()) * g).sum().backward()
    assert norm.nu.norm() < bound


X_HAT = {
    **{"model": "start", "norm": "powernorm", "layer_scale": 0, "tokens": "random"},
    **{"placement": "pre", "channels": 8, "mean_length2": 8.0, "largest_length2": 99.0},
    **{"largest_square": 99.0, "nu": 1.0, "nu_bound": 2.0},
    **{f"positions_within_{limit}": 1.0 for limit in assumption_two.LIMITS},
    **{f"channels_within_{limit}": 1.0 for limit in assumption_two.LIMITS},
}
GAIN = {
    **{key: X_HAT[key] for key in gain_over_psi.CASE},
    **{"identity_error": 0.0, "largest": 1.0, "mean": 0.5, "channels_above": 0.0},
}
LEMMA = {
    **{"norm": "batchnorm", "tokens": "random", "placement": "pre"},
    **{"lemma_error": 0.0, "equation_error": 0.0},
}


@pytest.mark.parametrize(
    ("claim", "row", "expected"),
    [
        (batch_gradients, LEMMA, ["yes", "yes"]),
        (batch_gradients, {**LEMMA, "lemma_error": 1e-8}, ["no", "yes"]),
        (batch_gradients, {**LEMMA, "equation_error": 1e-8}, ["yes", "no"]),
        (gain_over_psi, GAIN, ["yes", "yes"]),
        (gain_over_psi, {**GAIN, "identity_error": 1e-8}, ["no", "yes"]),
        (gain_over_psi, {**GAIN, "largest": 1.001}, ["yes", "no"]),
        (assumption_two, X_HAT, ["yes", "yes", "yes"]),
        (assumption_two, {**X_HAT, "largest_length2": 100.1}, ["no", "yes", "yes"]),
        (assumption_two, {**X_HAT, "largest_square": 100.1}, ["yes", "no", "yes"]),
        (assumption_two, {**X_HAT, "nu": 2.1}, ["yes", "yes", "no"]),
        (assumption_two, {**X_HAT, "nu": math.nan}, ["yes", "yes"]),
    ],
)
def test_a_statement_holds_where_it_is_met(claim, row, expected):
    assert holds(claim, row) == expected


# trained models


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A run with PowerNorm under pre-norm, still in the warm-up of its norms."""
    folder = tmp_path_factory.mktemp("run")
    corpus = write_pairs(write_dictionaries(folder / "bin"), 200)
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
    # in the warm-up x is divided by psi_B; the layer-scale makes the mean of psi_B^2 be 1
    assert frame["mean_length2"].to_numpy() == pytest.approx(frame["channels"], rel=1e-3)
    gains = pd.DataFrame(gain_over_psi.measure_once(options))
    assert gains["identity_error"].max() < 1e-9
    assert (gains["least"] < 0.5).all() and (gains["largest"] > 0.5).all()


def test_the_norm_is_as_it_was_before_its_batch(checkpoint):
    sites = list(trained.trained_sites(checkpoint, None))
    first = [each for each in sites if each.at.site == sites[0].at.site]
    stored = torch.load(checkpoint, weights_only=False)["model"][f"{first[0].at.site}.psi2"]
    torch.testing.assert_close(first[0].norm.psi2, stored)
    assert not torch.equal(first[1].norm.psi2, stored)
    assert not any(module.p for module in first[0].norm.modules() if hasattr(module, "p"))
