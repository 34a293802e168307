"""What each norm with batch statistics promises for itself."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from reference.base import ENTRIES

from batches import DIM, new_norm, step, upstream
from norm_plugin.norms import unified_norm

# Both sides compute in float64, in another order.
SAME = {"rtol": 1e-10, "atol": 1e-10}
EXACT = [(name, options) for name, entry in ENTRIES.items() for options in entry.exact]


def test_batchnorm_is_torchs_without_padding(ragged):
    x, _ = ragged()
    norm = new_norm("batchnorm", layer_scale_groups=0, momentum=0.3)
    mean, variance = torch.zeros(DIM).double(), torch.ones(DIM).double()
    theirs = x.clone().requires_grad_()
    expected = F.batch_norm(
        theirs.reshape(-1, DIM), mean, variance, norm.weight, norm.bias, True, 0.3, norm.eps
    )
    g = torch.randn_like(x)
    y, dx = step(norm, x, None, g)
    expected.backward(g.reshape(-1, DIM))
    torch.testing.assert_close(y.reshape(-1, DIM), expected, **SAME)
    torch.testing.assert_close(dx, theirs.grad, **SAME)
    torch.testing.assert_close(norm.running_mean, mean, **SAME)
    # torch keeps the unbiased variance
    biased = 0.7 + (variance - 0.7) * (1 - DIM / x.numel())
    torch.testing.assert_close(norm.running_var, biased, **SAME)


@pytest.mark.parametrize(("name", "options"), EXACT, ids=str)
def test_the_gradient_is_exact_also_here(name, options, ragged):
    x, mask = ragged(dim=4)
    norm = new_norm(name, 4, **options)
    inputs = (x.requires_grad_(), *norm.parameters())
    assert torch.autograd.gradcheck(lambda z, *_: norm(z, mask), inputs)


def test_the_trainer_counts_updates_but_not_for_released_powernorm(ragged):
    paper = new_norm("powernorm", warmup_updates=2)
    released = new_norm("powernorm", warmup_updates=2, variant="released")
    for update in range(3):
        for norm in (paper, released):
            norm.set_num_updates(update)
            for seed in range(2):  # micro-batches
                norm(*ragged(seed))
    assert (paper.num_updates.item(), released.num_updates.item()) == (2, 6)
    released.set_num_updates(0)
    assert released.num_updates.item() == 6


@pytest.mark.parametrize("per", ["batch", "token"])
@pytest.mark.parametrize("distance", ["variances", "deviations"])
def test_the_penalty_is_that_of_a_loss_with_it(distance, per, ragged):
    x, mask = ragged()
    g = upstream(x, mask)
    strengths = {"lambda_mean": 3.0, "lambda_std": 2.0}
    norm = new_norm("regularized-batchnorm", distance=distance, penalty_per=per, **strengths)
    step(norm, *ragged(1), torch.zeros_like(x))
    norm.loss_scale = 8.0
    before = norm.running_mean.clone(), norm.running_var.clone()
    _, dx = step(norm, x, mask, 8 * g)

    theirs = x.clone().requires_grad_()
    rows = theirs[~mask.t()]
    batch_mean, batch_variance = rows.mean(0), rows.var(0, unbiased=False)
    y = (rows - batch_mean) / (batch_variance + norm.eps).sqrt() * norm.weight + norm.bias
    if distance == "variances":
        penalty = 3 * (batch_mean - norm.running_mean).square().sum()
        penalty = penalty + 2 * (batch_variance - norm.running_var).abs().sum()
    else:
        mean, root = before[0], (before[1] + norm.eps).sqrt()
        penalty = 3 * (batch_mean - mean).square().sum()
        penalty = penalty + 2 * ((batch_variance + norm.eps).sqrt() - root).square().sum()
    loss = (y * g[~mask.t()]).sum() + penalty * (len(rows) if per == "token" else 1)
    (8 * loss).backward()
    torch.testing.assert_close(dx, theirs.grad, **SAME)


def test_the_penalty_does_not_grow_with_the_tokens_as_released():
    """The released criterion adds it once to the loss of a batch, however many tokens that has."""
    x = torch.randn(16, 2, DIM, dtype=torch.float64)
    seen = []
    for times in (1, 4):
        norm = new_norm("regularized-batchnorm")
        _, dx = step(norm, x.repeat(1, times, 1), None, torch.zeros(16, 2 * times, DIM).double())
        seen.append(dx[:, :2] * times)  # each of the equal rows has its share of one gradient
    torch.testing.assert_close(seen[1], seen[0], **SAME)
    assert seen[0].abs().max() > 0


def test_released_batchnorm_keeps_torchs_running_variance(ragged):
    """It calls torch's kernel on rows whose padding holds the mean: unbiased over all of them."""
    x, mask = ragged()
    norm = new_norm("batchnorm", variant="released", layer_scale_groups=0)
    rows, real = x.reshape(-1, DIM), ~mask.t().reshape(-1)
    filled = torch.where(real.unsqueeze(1), rows, rows[real].mean(0))
    mean, variance = torch.zeros(DIM).double(), torch.ones(DIM).double()
    F.batch_norm(filled, mean, variance, None, None, True, norm.momentum, norm.eps)
    norm(x, mask)
    torch.testing.assert_close(norm.running_mean, mean, **SAME)
    torch.testing.assert_close(norm.running_var, variance, **SAME)


def test_unified_keeps_outliers_out_of_its_window(ragged):
    norms = {on: new_norm("unified", outlier_skip=on, window=3) for on in ("on", "off")}
    for seed in range(6):
        for norm in norms.values():
            norm(*ragged(seed))
    x, mask = ragged(6)
    ys = {on: norm(100 * x, mask) for on, norm in norms.items()}
    # its own statistics bring the outlier to size 1; the window's would leave it larger
    scaled = {on: (y.detach() - norms[on].bias) / norms[on].weight for on, y in ys.items()}
    sizes = {on: z[~mask.t()].square().mean(0) for on, z in scaled.items()}
    # what eps (1e-5) is beside mean squares of 2e3 and more is below 1e-8; the window's would
    # be tens away
    torch.testing.assert_close(sizes["on"], torch.ones(DIM).double(), rtol=1e-6, atol=0)
    assert (sizes["off"] > 10).all()
    assert norms["on"].squares.max() < 100 < norms["off"].squares.max()


def test_unified_takes_white_noise_for_no_outlier(monkeypatch):
    """Over hundreds of channels, whose scales differ, one of them is always far off by chance."""
    norm = new_norm("unified", 512, outlier_skip="on")
    scale = torch.linspace(0.5, 2, 512).double()
    outliers = []
    decide = unified_norm.is_outlier
    monkeypatch.setattr(
        unified_norm, "is_outlier", lambda *rows: outliers.append(decide(*rows)) or outliers[-1]
    )
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        norm(torch.randn(64, 4, 512, generator=generator, dtype=torch.float64) * scale)
    assert len(outliers) == 12 and not any(outliers)


def test_repbn_goes_from_layernorm_to_batchnorm(ragged):
    x, mask = ragged()
    norm = new_norm("repbn", blend_updates=4)
    real = ~mask.t()
    layer_norm = F.layer_norm(x, (DIM,), norm.ln_weight, norm.ln_bias, norm.eps)[real]
    norm.set_num_updates(0)
    torch.testing.assert_close(norm(x, mask)[real], layer_norm, **SAME)
    alone = new_norm("repbn")
    alone.load_state_dict({key: norm.state_dict()[key] for key in alone.state_dict()})
    for updates, share in ((1, 0.75), (3, 0.25), (4, 0.0), (9, 0.0)):
        norm.set_num_updates(updates)
        for training in (True, False):
            rep = copy.deepcopy(alone).train(training)
            rep.load_state_dict({key: norm.state_dict()[key] for key in rep.state_dict()})
            expected = share * layer_norm + (1 - share) * rep(x, mask)[real]
            blended = norm.train(training)(x, mask)[real]
            torch.testing.assert_close(blended, expected, **SAME)
    assert not norm.running_mean.eq(0).any() and alone.eta.shape == (1,)
