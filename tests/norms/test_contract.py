"""The contract of a norm, over every registered norm: shapes, padding, precision, options."""

from __future__ import annotations

import copy

import pytest
import torch
from reference.base import ENTRIES

from norm_plugin.norms import NORM_TYPES, Norm, build_norm, norm_spec

DIM = 12
EXACT_GRADIENT = [name for name in NORM_TYPES if norm_spec(name).cls.exact_gradient]
APPROXIMATE_GRADIENT = sorted(set(NORM_TYPES) - set(EXACT_GRADIENT))
REFUSED = [(name, *case) for name, entry in ENTRIES.items() for case in entry.refused]
CHECKED = [name for name in NORM_TYPES if norm_spec(name).cls.normalize is not Norm.normalize]
"""The norms whose forward is ``Norm.forward``; torch's own kernel checks the input of others."""
WITH_STATISTICS = [name for name in NORM_TYPES if norm_spec(name).batch_statistics]

pytestmark = pytest.mark.filterwarnings("error")
every_norm = pytest.mark.parametrize("name", NORM_TYPES)
norms_with_a_warmup = pytest.mark.parametrize(
    "name", [name for name in WITH_STATISTICS if norm_spec(name).has_option("warmup_updates")]
)
norms_with_statistics = pytest.mark.parametrize("name", WITH_STATISTICS)


@every_norm
def test_keeps_shape_and_dtype_for_any_leading_dimensions(name):
    for shape in ((5, DIM), (DIM,), (2, 3, 4, DIM), (0, 4, DIM)):
        x = torch.randn(shape)
        y = build_norm(name, DIM)(x)
        assert y.shape == x.shape and y.dtype == x.dtype


@every_norm
def test_the_mask_is_batch_by_time_however_the_input_lies(name):
    """With T = B a mask fits both ways, and only one of them is right."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 4, DIM, generator=generator, dtype=torch.float64)
    x = x * torch.arange(1, 5).view(4, 1, 1)  # the times are unlike, so a transposed mask shows
    mask = torch.arange(4).unsqueeze(0) >= torch.tensor([4, 3, 1, 1]).unsqueeze(1)
    real = ~mask.t()
    seen = []
    for batch_first in (False, True):
        norm = build_norm(name, DIM).double()
        y = norm(x.transpose(0, 1) if batch_first else x, mask, batch_first)
        seen.append((y.transpose(0, 1) if batch_first else y)[real])
        if norm_spec(name).batch_statistics:
            other = build_norm(name, DIM).double()
            other(x.transpose(0, 1) if batch_first else x, mask, not batch_first)
            ours, theirs = norm.state_dict().values(), other.state_dict().values()
            assert any(not torch.equal(a, b) for a, b in zip(ours, theirs))
    # the same rows in another order: float64 rounding of sums
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-12, atol=1e-12)


@every_norm
def test_what_stands_at_padding_cannot_be_seen(name, ragged):
    x, mask = ragged()
    poisoned = x.masked_fill(mask.t().unsqueeze(-1), float("nan"))
    real = ~mask.t()
    norm, other = build_norm(name, DIM).double(), build_norm(name, DIM).double()
    assert torch.equal(norm(poisoned, mask)[real], other(x, mask)[real])
    for key, value in other.state_dict().items():
        assert torch.equal(norm.state_dict()[key], value), key


def gradient_is_exact(name, ragged):
    # the smallest width of which groupnorm makes groups of two
    x, mask = ragged(dim=8)
    norm = build_norm(name, 8).double()
    wrt = (x.requires_grad_(), *norm.parameters())
    return torch.autograd.gradcheck(lambda z, *_: norm(z, mask), wrt, raise_exception=False)


@pytest.mark.parametrize("name", EXACT_GRADIENT)
def test_gradient_is_exact(name, ragged):
    assert gradient_is_exact(name, ragged)


@pytest.mark.parametrize("name", APPROXIMATE_GRADIENT)
def test_a_gradient_called_approximate_is(name, ragged):
    assert not gradient_is_exact(name, ragged)


@norms_with_statistics
def test_statistics_stay_in_float32(name, ragged):
    x, mask = ragged(dtype=torch.float32)
    norm = build_norm(name, DIM)
    norm(x, mask)
    before = copy.deepcopy(norm.state_dict())
    norm.half()
    for key, buffer in norm.named_buffers():
        assert torch.equal(buffer, before[key]) and buffer.dtype == before[key].dtype, key


@norms_with_statistics
def test_statistics_move_in_training_only(name, ragged):
    x, mask = ragged(dtype=torch.float32)
    norm = build_norm(name, DIM).eval()
    fresh = copy.deepcopy(norm.state_dict())
    norm(x, mask)
    assert all(torch.equal(norm.state_dict()[key], value) for key, value in fresh.items())
    norm.train()
    norm(x.requires_grad_(), mask).sum().backward()
    moved = [key for key, value in fresh.items() if not torch.equal(norm.state_dict()[key], value)]
    assert set(moved) == {key for key, _ in norm.named_buffers()}


@norms_with_a_warmup
def test_state_dict_carries_the_warmup(name, ragged):
    x, mask = ragged(dtype=torch.float32)
    norm = build_norm(name, DIM, warmup_updates=3)
    for _ in range(2):
        norm(x, mask)
    loaded = build_norm(name, DIM, warmup_updates=3)
    loaded.load_state_dict(norm.state_dict())
    assert loaded.in_warmup
    loaded(x, mask)
    assert not loaded.in_warmup


@norms_with_a_warmup
def test_a_trainer_counts_the_updates(name, ragged):
    x, mask = ragged(dtype=torch.float32)
    norm = build_norm(name, DIM, warmup_updates=2)
    for _ in range(5):  # five micro-batches of the second update
        norm.set_num_updates(1)
        assert norm.in_warmup
        norm(x, mask)
    norm.set_num_updates(2)
    assert not norm.in_warmup
    assert norm.state_dict()["num_updates"].item() == 2


@pytest.mark.parametrize("name", CHECKED)
def test_a_wrong_input_says_what_is_wrong(name):
    norm = build_norm(name, DIM)
    with pytest.raises(ValueError, match=f"built for {DIM} channels"):
        norm(torch.randn(7, 4, DIM + 1))
    with pytest.raises(ValueError, match=r"padding_mask has shape \(4, 6\).*needs \(4, 7\)"):
        norm(torch.randn(7, 4, DIM), torch.zeros(4, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(4, 7\).*batch_first=True needs \(7, 4\)"):
        norm(torch.randn(7, 4, DIM), torch.zeros(4, 7, dtype=torch.bool), batch_first=True)


@every_norm
def test_an_unknown_option_lists_the_right_ones(name):
    own = ", ".join(option.name for option in norm_spec(name).options)
    with pytest.raises(ValueError, match=f"no option 'epsilon'; its options are {own}"):
        build_norm(name, DIM, epsilon=1e-5)
    for option in norm_spec(name).options:
        if option.type is float:
            with pytest.raises(ValueError, match=f"{option.name} is 'small'; .* of type float"):
                build_norm(name, DIM, **{option.name: "small"})


@every_norm
def test_it_declares_itself(name):
    spec = norm_spec(name)
    assert spec.formula and spec.paper and spec.cls.__doc__
    for option in spec.options:
        assert option.help, option.name
        assert option.parse(str(option.default)) == option.default


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_a_value_out_of_range_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_norm(name, DIM, **options)


@every_norm
def test_every_number_of_an_option_is_finite(name):
    value = float("nan")
    for option in norm_spec(name).options:
        if option.type is not str:
            rule = "finite" if option.type is float else "of type int"
            with pytest.raises(ValueError, match=f"{option.name} is {value}; it must be {rule}"):
                build_norm(name, DIM, **{option.name: value})
    if norm_spec(name).has_option("eps"):
        with pytest.raises(ValueError, match="eps is -1.0; it must be 0 or more"):
            build_norm(name, DIM, eps=-1)


@norms_with_statistics
def test_a_replica_and_a_copy_into_the_count_are_noticed(name, ragged):
    x, mask = ragged(dtype=torch.float32)
    norm = build_norm(name, DIM)
    replica = norm._replicate_for_data_parallel()  # the first one has the very buffers
    for key, parameter in norm.named_parameters():
        setattr(replica, key, parameter.detach())
    replica(x, mask)
    assert norm.updates_counted == norm.num_updates.item() == 1
    norm.num_updates.copy_(torch.tensor(7))
    assert norm.updates_counted == 7


@norms_with_statistics
def test_a_module_on_meta_loads(name):
    state = build_norm(name, DIM).state_dict()
    state["num_updates"] += 3
    with torch.device("meta"):
        norm = build_norm(name, DIM)
    norm.load_state_dict(state, assign=True)
    assert norm.updates_counted == 3


def test_an_unbiased_deviation_needs_two_channels():
    build_norm("adanorm", 1)
    with pytest.raises(ValueError, match="dim is 1; variant=released needs at least two"):
        build_norm("adanorm", 1, variant="released")


@every_norm
def test_a_norm_says_whether_it_bounds_its_output(name):
    spec = norm_spec(name)
    options = {"warmup_updates": 9} if spec.has_option("warmup_updates") else {}
    x = torch.randn(9, 4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small, large = (
        spec.build(16, **options).double()(size * x).abs().max().item() for size in (1, 1e6)
    )
    assert (large < 1000 * small) == spec.cls.bounded
