"""``start_cumulative_average``: running statistics that are means over forwards."""

from __future__ import annotations

import pytest
import torch

from batches import FORMS, every_form, new_norm, state_of


@pytest.mark.parametrize("name", [name for name, options in FORMS if not options])
def test_running_forms_are_those_of_the_statistics_that_they_name(name, ragged):
    norm = new_norm(name)
    for seed in (1, 2):  # of which nothing may be left
        norm(*ragged(seed))
    norm.start_cumulative_average()
    x, mask = ragged()
    for _ in range(2):  # the mean of two equal batches is that of one
        norm(x, mask)
    u = norm.statistics_input(x)[~mask.t()].double()
    statistics = {
        "mean": u.mean(dim=0),
        "variance": u.var(dim=0, correction=0),
        "square": u.square().mean(dim=0),
    }
    for statistic, buffer in norm.running_buffers.items():
        torch.testing.assert_close(norm.get_buffer(buffer).double(), statistics[statistic])


def test_after_its_first_forward_powernorm_divides_by_the_running_mean(ragged):
    norm = new_norm("powernorm", layer_scale_groups=0)
    norm.start_cumulative_average()
    (x, mask), (other, _) = ragged(0), ragged(1)
    for batch, divided_by in ((x, x), (other, x)):
        psi2 = divided_by[~mask.t()].square().mean(dim=0)
        expected = batch / (psi2 + norm.eps).sqrt() * norm.weight + norm.bias
        real = ~mask.t()
        torch.testing.assert_close(norm(batch, mask)[real], expected[real], rtol=1e-12, atol=1e-12)


@every_form
def test_a_batch_of_padding_or_of_values_that_are_not_finite_has_no_weight(name, options, ragged):
    x, mask = ragged()
    norm, other = new_norm(name, **options), new_norm(name, **options)
    norm.start_cumulative_average()
    other.start_cumulative_average()
    norm(x, torch.ones_like(mask))
    norm(x[:0], mask[:, :0])
    norm(x / 0, mask)
    assert torch.equal(norm(x, mask), other(x, mask))
    for key, value in norm.named_buffers():
        assert torch.equal(value, other.get_buffer(key)), key


def test_an_infinity_at_padding_does_not_matter(ragged):
    x, mask = ragged()
    norm = new_norm("powernorm")
    norm.start_cumulative_average()
    norm(x.masked_fill(mask.t().unsqueeze(-1), torch.inf), mask)
    assert norm.averaged_forwards == 1


def test_forwards_that_are_computed_again_do_not_count(ragged):
    norm = new_norm("batchnorm")
    norm.start_cumulative_average()
    x, mask = ragged()
    y = torch.utils.checkpoint.checkpoint(norm, x.requires_grad_(), mask, use_reentrant=False)
    y.sum().backward()
    assert norm.averaged_forwards == 1


@pytest.mark.parametrize("name", sorted({name for name, _ in FORMS}))
def test_statistics_of_averaged_weights_as_the_documentation_computes_them(name):
    """``torch.optim.swa_utils.update_bn`` does not know these norms."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 12), new_norm(name).float())
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    batches = [torch.randn(6, 4) + step for step in range(4)]
    before = state_of(averaged)
    torch.optim.swa_utils.update_bn(batches, averaged)
    for key, value in state_of(averaged).items():
        assert torch.equal(value, before[key]), key
    norm = averaged.module[1]
    norm.start_cumulative_average()
    averaged.train()
    with torch.no_grad():
        for batch in batches:
            averaged(batch)
    mean = torch.stack(
        [norm.statistics_input(model[0](batch)).mean(dim=0) for batch in batches]
    ).mean(0)
    if "mean" in norm.running_buffers:
        torch.testing.assert_close(norm.get_buffer(norm.running_buffers["mean"]), mean)
    assert norm.averaged_forwards == 4 and norm.num_updates == before["module.1.num_updates"]
