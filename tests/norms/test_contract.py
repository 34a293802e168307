"""The contract of a norm, over every registered norm: shapes, padding, precision, options."""

from __future__ import annotations

import copy
import pickle
import warnings
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from reference import CASES, transcription
from reference.base import ENTRIES

from batches import new_norm, step, upstream
from norm_plugin.checks.norms import CHECKS
from norm_plugin.checks.user_dir import failure
from norm_plugin.norms import NORM_TYPES, AffineNorm, Norm, build_norm, norm_spec
from norm_plugin.norms.base.contract import valid_positions
from norm_plugin.norms.base.position_leak_check import mixes_positions
from norm_plugin.norms.layer_norm import LayerNorm

DIM = 12
REFUSED = [(name, *case) for name, entry in ENTRIES.items() for case in entry.refused]
CHECKED = [name for name in NORM_TYPES if norm_spec(name).cls.normalize is not Norm.normalize]
"""The norms whose forward is ``Norm.forward``; torch's own kernel checks the input of others."""
WITH_STATISTICS = [name for name in NORM_TYPES if norm_spec(name).batch_statistics]

pytestmark = [
    pytest.mark.filterwarnings("error"),
    # nothing multiplies the loss here, so the factor is 1; test_loss_scale.py tests the warning
    pytest.mark.filterwarnings("ignore:.*trains in float16, and no torch.amp.GradScaler"),
    pytest.mark.filterwarnings("ignore:a .* trains on one position"),  # tested by itself
]
every_norm = pytest.mark.parametrize("name", NORM_TYPES)
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=str)
norms_with_statistics = pytest.mark.parametrize("name", WITH_STATISTICS)


# The checks that norms like released code fail
BY_DESIGN = {
    ("batchnorm", "released"): {"padding"},  # it divides by all positions
    ("powernorm", "released"): {"gradient"},  # padding gets one
}


@every_case
def test_passes_check_user_dir(name, options, kernels):
    spec = norm_spec(name)
    mixes = spec.batch_statistics and "blend_updates" not in options  # which begins as layernorm
    case = SimpleNamespace(
        build=partial(spec.build, **options),
        batch_statistics=mixes,
        cls=spec.cls,
        has_option=spec.has_option,
    )
    messages = {check: failure(partial(CHECKS[check], case)) for check in CHECKS}
    failed = {check for check, message in messages.items() if message is not None}
    assert failed == BY_DESIGN.get((name, options.get("variant")), set()), messages


@every_case
def test_what_stands_at_padding_is_never_read(name, options, kernels, ragged):
    norm, other = new_norm(name, **options), new_norm(name, **options)
    if transcription(name, norm, **options).pulls_padding:
        pytest.skip("padding is a position like the others in this released code")
    for seed in range(3):
        x, mask = ragged(seed)
        real, g = ~mask.t(), upstream(x, mask)
        poisoned = x.masked_fill(~real.unsqueeze(-1), torch.nan)
        (y, dx), (wanted, wanted_dx) = step(norm, poisoned, mask, g), step(other, x, mask, g)
        assert torch.equal(y[real], wanted[real]) and torch.equal(dx[real], wanted_dx[real]), seed
        if norm.batch_statistics:
            assert not dx[~real].any(), seed  # nor NaN
        for key, value in other.state_dict().items():
            assert torch.equal(norm.state_dict()[key], value), key


@norms_with_statistics
def test_statistics_stay_in_float32(name, ragged):
    x, mask = ragged(dtype=torch.float32)
    norm = build_norm(name, DIM)
    norm(x, mask)
    before = copy.deepcopy(norm.state_dict())
    norm.half()
    for key, buffer in norm.named_buffers():
        assert torch.equal(buffer, before[key]) and buffer.dtype == before[key].dtype, key


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@every_norm
def test_whether_positions_mix_does_not_depend_on_defaults_of_torch(name):
    norm = build_norm(name, DIM)
    with default_dtype(torch.float64), torch.device("meta"):
        assert mixes_positions(norm) == norm.batch_statistics
    assert mixes_positions(norm.double()) == norm.batch_statistics


@norms_with_statistics
def test_a_norm_that_is_built_in_half_precision(name, ragged, kernels):
    # as from_pretrained(dtype=torch.bfloat16) of transformers builds it
    with default_dtype(torch.bfloat16):
        norm = build_norm(name, DIM)
    converted = build_norm(name, DIM).bfloat16()
    for seed in range(20):
        x, mask = ragged(seed, dtype=torch.bfloat16)
        for each in (norm, converted):
            each(5 + x, mask)
    for (key, buffer), expected in zip(norm.named_buffers(), converted.buffers()):
        assert torch.equal(buffer, expected) and buffer.dtype == expected.dtype, key
    state = converted.state_dict()
    rounded = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in state.items()
    }
    norm.load_state_dict(rounded, assign=True)
    assert all(buffer.dtype != torch.bfloat16 for buffer in norm.buffers())


@pytest.mark.parametrize("name", CHECKED)
def test_a_wrong_input_says_what_is_wrong(name):
    norm = build_norm(name, DIM)
    with pytest.raises(ValueError, match=f"built for {DIM} channels"):
        norm(torch.randn(7, 4, DIM + 1))
    with pytest.raises(ValueError, match=r"padding_mask has shape \(4, 6\).*needs \(4, 7\)"):
        norm(torch.randn(7, 4, DIM), torch.zeros(4, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(4, 7\).*batch_first=True needs \(7, 4\)"):
        norm(torch.randn(7, 4, DIM), torch.zeros(4, 7, dtype=torch.bool), batch_first=True)


@norms_with_statistics
def test_a_single_position_is_warned_of_where_a_mean_is_subtracted(name, kernels):
    norm = build_norm(name, DIM)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        norm(torch.randn(2, 1, DIM))
        norm.eval()(torch.randn(1, DIM))
        norm.train()(torch.randn(0, DIM))
        assert not caught
        norm(torch.randn(1, 1, DIM))
    assert len(caught) == ("running_mean" in dict(norm.named_buffers()))


@every_norm
def test_the_input_may_be_named_as_by_torch(name):
    x, mask = torch.randn(7, 4, DIM), torch.zeros(4, 7, dtype=torch.bool)
    norm = build_norm(name, DIM).eval()
    hooked = []
    norm.register_forward_pre_hook(lambda norm, inputs: hooked.append(inputs[0]))
    for call in ({"input": x}, {"x": x}, {"padding_mask": mask, "input": x}):
        assert torch.equal(norm(**call), norm(x))
    assert all(given is x for given in hooked)
    with pytest.raises(TypeError):
        norm(x, input=x, padding_mask=mask)


@every_norm
def test_an_unknown_option_lists_the_right_ones(name):
    own = ", ".join(option.name for option in norm_spec(name).options)
    with pytest.raises(ValueError, match=f"no option 'epsilon'; its options are {own}"):
        build_norm(name, DIM, epsilon=1e-5)
    for option in norm_spec(name).options:
        if option.type is float:
            with pytest.raises(ValueError, match=f"{option.name} is 'small'; .* of type float"):
                build_norm(name, DIM, **{option.name: "small"})


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
def test_a_module_on_meta_loads(name):
    state = build_norm(name, DIM).state_dict()
    state["num_updates"] += 3
    with torch.device("meta"):
        norm = build_norm(name, DIM)
    norm.load_state_dict(state, assign=True)
    assert norm.updates_counted == 3


@every_case
def test_memory_without_values_gets_those_of_a_new_norm(name, options):
    with torch.device("meta"):
        norm = build_norm(name, DIM, **options)
    norm.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*norm.parameters(), *norm.buffers()):
            tensor.fill_(-13)  # which may be there
    norm.reset_parameters()
    assert_same_state(norm, build_norm(name, DIM, **options))


@every_case
def test_a_norm_that_has_trained_begins_anew(name, options, ragged, kernels):
    norm, new = (build_norm(name, DIM, **options).double() for _ in range(2))
    parameters = list(norm.parameters())
    for seed in range(3):
        x, mask = ragged(seed)
        step(norm, x, mask, upstream(x, mask))
        with torch.no_grad():
            for parameter in parameters:
                parameter += 1
        if norm.batch_statistics:
            norm.count_step({"weight"})
    if norm.batch_statistics:
        norm.set_num_updates(7)
    norm.reset_parameters()
    assert all(one is other for one, other in zip(norm.parameters(), parameters))
    for seed in range(3):
        x, mask = ragged(seed)
        g = upstream(x, mask)
        for one, other in zip(step(norm, x, mask, g), step(new, x, mask, g)):
            assert torch.equal(one, other), seed
    assert_same_state(norm, new)


def assert_same_state(norm, new):
    assert norm.state_dict().keys() == new.state_dict().keys()
    for key, value in new.state_dict().items():
        assert torch.equal(norm.state_dict()[key], value), key
    if norm.batch_statistics:
        assert norm.updates_counted == new.updates_counted


class Drawn(AffineNorm):
    """A norm of a user, with a parameter of its own, another inside a module, and a buffer."""

    def __init__(self, dim, *, scale=1.0):
        super().__init__(dim)
        self.inner = torch.nn.Linear(dim, dim)
        self.drawn = torch.nn.Parameter(scale * torch.randn(dim))
        self.register_buffer("steps", torch.arange(dim), persistent=False)


@pytest.mark.parametrize("copied", [False, True])
def test_a_norm_of_a_user_begins_anew_without_code_of_its_own(copied):
    norm = Drawn(DIM, scale=3.0)
    norm = pickle.loads(pickle.dumps(norm)) if copied else norm
    inner = norm.inner.weight.clone()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.drawn, norm.steps):
            tensor.fill_(-13)
    torch.manual_seed(5)
    with torch.device("meta"):
        norm.reset_parameters()
    torch.manual_seed(5)
    expected = Drawn(DIM, scale=3.0)
    for name in ("weight", "bias", "drawn", "steps"):
        assert torch.equal(getattr(norm, name), getattr(expected, name)), name
    assert torch.equal(norm.inner.weight, inner)  # a module of its own, with such a method
    norm.late = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(RuntimeError, match="late was added to a Drawn after it was built"):
        norm.reset_parameters()


def test_an_unbiased_deviation_needs_two_channels():
    build_norm("adanorm", 1)
    with pytest.raises(ValueError, match="dim is 1; variant=released needs two channels"):
        build_norm("adanorm", 1, variant="released")


def test_learned_numbers_start_as_in_the_papers():
    for name in NORM_TYPES:
        if norm_spec(name).has_option("alpha_init"):
            start = build_norm(name, DIM, alpha_init=0.3).alpha
            assert torch.equal(start, torch.full_like(start, 0.3)), name
    assert build_norm("scalenorm", DIM).g.item() == pytest.approx(DIM**0.5)


def test_released_adanorm_has_a_gradient_at_a_constant_row():
    x = torch.ones(1, DIM, requires_grad=True)
    build_norm("adanorm", DIM, variant="released", k=0, scale=1)(x)[0, 0].backward()
    # (1 - 1/12) / eps for the channel itself, -1/12 / eps for the others
    expected = torch.full((1, DIM), -1e5 / 12)
    expected[0, 0] += 1e5
    torch.testing.assert_close(x.grad, expected)


def test_a_mask_is_inverted_once_until_it_changes():
    x, mask = torch.ones(3, 2, DIM), torch.tensor([[False, False, True], [False, True, True]])
    valid = valid_positions(x, mask)
    assert valid_positions(x, mask) is valid and valid.is_contiguous()
    assert valid_positions(x.transpose(0, 1), mask, batch_first=True).equal(~mask)
    assert valid_positions(x, mask).equal(~mask.t())
    mask[0, 0] = True
    assert valid_positions(x, mask).equal(~mask.t())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of traces
        traced = torch.jit.trace(valid_positions, (x, mask))
    other = torch.zeros_like(mask)
    assert traced(x, other).equal(~other.t())


def test_a_copied_mask_is_inverted_anew():
    x, mask = torch.ones(3, 2, DIM), torch.zeros(2, 3, dtype=torch.bool)
    for position in (1, 2):
        mask[0, position] = True
    valid_positions(x, mask)
    copied = copy.deepcopy(mask)  # with what is kept on the mask, and versions of its own
    while copied._version < mask._version:
        copied[1, 2] = True
    assert valid_positions(x, copied).equal(~copied.t())


def test_a_mask_of_an_evaluation_in_inference_mode_serves_a_training():
    x, mask = torch.randn(5, 3, 8, requires_grad=True), torch.zeros(3, 5, dtype=torch.bool)
    norm = build_norm("batchnorm", 8)
    with torch.inference_mode():
        norm.eval()(x, mask)
    norm.train()(x, mask).sum().backward()
    assert x.grad is not None


def test_a_subclass_of_layernorm_computes_by_its_own_normalize():
    class Doubled(LayerNorm):
        def normalize(self, x, valid):
            return 2 * x

    x = torch.randn(3, 2, DIM)
    assert Doubled(DIM)(x).equal(2 * x)
