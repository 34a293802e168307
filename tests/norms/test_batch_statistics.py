"""What holds for the norms with batch statistics, in each of the forms they are tested in."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from batches import DIM, FORMS, every_form, new_norm, state_of, step, upstream
from norm_plugin.kernels.fused_forms import _FORMS, Fused
from norm_plugin.norms import norm_spec
from norm_plugin.norms.base.window import WindowNorm

WITH_WINDOWS = [form for form in FORMS if issubclass(norm_spec(form[0]).cls, WindowNorm)]


@every_form
def test_a_batch_of_padding_updates_no_statistic(name, options, ragged):
    norm = new_norm(name, **options)
    for seed in range(3):
        x, mask = ragged(seed)
        step(norm, x, mask, upstream(x, mask))
    before = state_of(norm)
    x, mask = ragged(3)
    y, dx = step(norm, x, torch.ones_like(mask), torch.ones_like(x))
    # x is of size 3; a division by the root of eps alone would bring it to 1000
    assert y.abs().max() < 100 and dx.abs().max() < 100
    for key, value in norm.named_buffers():
        if value.is_floating_point() or key.endswith("filled"):
            assert torch.equal(value, before[key]), key
    norm.train()(x.new_zeros(0, 4, DIM))  # nor does a batch without any position
    for key, value in norm.named_buffers():
        assert not value.is_floating_point() or torch.equal(value, before[key]), key


@every_form
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputing_repeats_a_forward_and_moves_nothing(name, options, reentrant, ragged):
    plain, checkpointed = new_norm(name, **options), new_norm(name, **options)

    def recomputed(x, mask):
        return checkpoint(checkpointed, x, mask, use_reentrant=reentrant)

    for seed in range(12):  # over the end of every warm-up
        x, mask = ragged(seed)
        g = upstream(x, mask)
        y, dx = step(plain, x, mask, g)
        other_y, other_dx = step(recomputed, x, mask, g)
        assert torch.equal(other_y, y) and torch.equal(other_dx, dx), seed
        for key, value in plain.named_buffers():
            assert torch.equal(checkpointed.get_buffer(key), value), key


@every_form
def test_two_forwards_before_a_backward_are_repeated_each(name, options, ragged):
    plain, checkpointed = new_norm(name, **options), new_norm(name, **options)
    for seed in range(0, 8, 2):
        grads = []
        for recomputing in (False, True):
            norm = checkpointed if recomputing else plain
            xs = [ragged(seed + offset)[0].requires_grad_() for offset in range(2)]
            mask = ragged()[1]
            ys = [
                checkpoint(norm, x, mask, use_reentrant=False) if recomputing else norm(x, mask)
                for x in xs
            ]
            losses = [(y * upstream(ragged(9)[0], mask).sign()).square().sum() for y in ys]
            if seed % 4:
                sum(losses).backward()
            else:
                for loss in losses:
                    loss.backward()
            grads.append([x.grad for x in xs])
        for ours, theirs in zip(*grads):
            assert torch.equal(ours, theirs), seed


def test_a_forward_too_long_ago_is_refused(ragged):
    norm = new_norm("unified")
    x, mask = ragged()
    y = checkpoint(norm, x.requires_grad_(), mask, use_reentrant=False)
    with torch.no_grad():  # as a checkpoint's first forward is
        for seed in range(1, 20):
            norm(*ragged(seed))
    with pytest.raises(RuntimeError, match="its input is none of the last 16 that are stored"):
        y.sum().backward()


def test_only_a_forward_that_may_be_recomputed_is_stored(ragged):
    norm = new_norm("unified")
    norm(*ragged())
    assert not norm._forwards.forwards
    with torch.no_grad():
        norm(*ragged())
    assert len(norm._forwards.forwards) == 1


@every_form
def test_a_graph_of_gradients_reaches_no_statistic(name, options, ragged):
    norm = new_norm(name, **options)
    x, mask = ragged()
    y = norm(x.requires_grad_(), mask)
    torch.autograd.grad(y.square().sum(), x, create_graph=True)
    assert not any(value.requires_grad for value in norm.buffers())
    copy.deepcopy(norm)


@every_form
def test_a_scaled_loss_gives_the_scaled_gradient_and_the_same_statistics(name, options, ragged):
    """--fp16 and --amp scale so; the scale is a power of two, so not even rounding differs."""
    plain, scaled = new_norm(name, **options), new_norm(name, **options)
    for seed in range(6):
        scale = 2.0 ** (7 + seed)  # the scale changes during a run
        scaled.loss_scale = scale if seed % 2 else torch.tensor(scale)
        x, mask = ragged(seed)
        g = upstream(x, mask)
        _, dx = step(plain, x, mask, g)
        _, scaled_dx = step(scaled, x, mask, scale * g)
        assert torch.equal(scaled_dx, scale * dx), seed
        for key, value in plain.named_buffers():
            assert torch.equal(scaled.get_buffer(key), value), key


@pytest.mark.parametrize(("name", "options"), WITH_WINDOWS, ids=str)
def test_an_overflow_of_the_first_batch_fills_no_window(name, options, ragged):
    """A row of zeros would make the geometric mean of the next M batches 0."""
    norm = new_norm(name, **options)
    x, mask = ragged()
    step(norm, x.fill_(float("inf")), mask, upstream(x, mask))
    assert norm.squares_filled == norm.gradients_filled == 0
    assert not norm.squares.any() and not norm.gradients.any()


@every_form
def test_an_overflow_leaves_every_statistic_finite(name, options, ragged):
    norm = new_norm(name, **options)
    for seed in range(6):
        x, mask = ragged(seed)
        g = upstream(x, mask)
        if seed in (3, 4):
            (x if seed == 3 else g)[0, 0, 5] = float("inf")
        step(norm, x, mask, g)
        for key, value in norm.named_buffers():
            assert torch.isfinite(value).all(), (key, seed)


def damaged(norm):
    """Entries that no training can have left, with what the error says."""
    form = norm.running_buffers
    squares = [form[kind] for kind in ("variance", "square") if kind in form]
    for name, buffer in norm.named_buffers(recurse=False):
        if buffer.is_floating_point():
            yield name, float("nan"), "NaN or infinite"
            yield name, float("inf"), "NaN or infinite"
    yield from ((name, -1.0, "below 0") for name in squares)
    yield "num_updates", -5, "below 0"
    yield "num_updates", 2**60, "no training"


@every_form
def test_values_that_cannot_have_arisen_are_not_loaded(name, options):
    norm = new_norm(name, **options)
    for buffer, value, message in damaged(norm):
        state = {key: entry.clone() for key, entry in norm.state_dict().items()}
        state[buffer].view(-1)[0] = value
        with pytest.raises(RuntimeError, match=message):
            torch.nn.Sequential(norm).load_state_dict({f"0.{k}": v for k, v in state.items()})


@every_form
def test_a_forward_inside_a_backward_pass_is_one_like_others(name, options, ragged, kernels):
    """As where a hook computes an auxiliary loss; activation checkpointing is not used."""
    norm, other = new_norm(name, **options), new_norm(name, **options)
    for seed in (1, 3):
        x, second = ragged(seed)[0], ragged(seed + 1)[0]
        y, expected = norm(x.clone().requires_grad_()), other(x.clone().requires_grad_())
        inside = []

        def auxiliary(g, second=second, inside=inside):
            inside.append(norm(second))

        y.register_hook(auxiliary)
        y.sum().backward()
        with torch.no_grad():  # as in a hook
            assert torch.equal(inside[0], other(second))
        expected.sum().backward()
        for key in norm.forward_updated_buffers:
            assert torch.equal(state_of(norm)[key], state_of(other)[key]), key
        assert norm.updates_counted == other.updates_counted


@every_form
def test_gradients_of_parameters_alone_move_no_statistic(name, options, ragged, kernels):
    norm = new_norm(name, **options)
    for seed, leaf in enumerate((True, False)):
        x, mask = ragged(seed)
        x = x.requires_grad_() if leaf else 2 * x.requires_grad_()
        y = norm(x, mask)
        before = state_of(norm)
        torch.autograd.grad(y.square().sum(), norm.parameters(), retain_graph=True)
        for key, value in state_of(norm).items():
            assert torch.equal(value, before[key]), key
        torch.autograd.grad(y.square().sum(), [x, *norm.parameters()])
        moved = any(not torch.equal(value, before[key]) for key, value in state_of(norm).items())
        assert moved == (name in ("powernorm", "mabn", "unified"))


@every_form
@pytest.mark.parametrize(("first", "reentrant"), [(True, False), (False, True)])
def test_kernels_may_change_between_a_forward_and_its_repetition(name, options, first, reentrant):
    gradients, x = [], torch.randn(7, 4, 12, dtype=torch.float64)
    fused = Fused(_FORMS[norm_spec(name).class_of(options)], "cpu")
    for changed in (False, True):
        norm, leaf = new_norm(name, **options), x.clone().requires_grad_()
        norm.fused = fused if first else None
        y = checkpoint(norm, leaf, use_reentrant=reentrant)
        if changed:
            norm.fused = None if first else fused
        chosen = norm.fused
        y.square().sum().backward()
        assert norm.fused is chosen
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_data_parallel_evaluates_and_does_not_train():
    """Its threads would give a replica the padding mask of another."""
    norm = new_norm("batchnorm")
    with pytest.raises(RuntimeError, match="train by DistributedDataParallel"):
        norm._replicate_for_data_parallel()
    norm.eval()._replicate_for_data_parallel()
