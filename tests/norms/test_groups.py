"""``ghost_batch_tokens``: groups of a batch are what batches of their size would be."""

from __future__ import annotations

import torch

from batches import every_form, new_norm, state_of, step, upstream
from norm_plugin.norms.base.statistics import set_ghost_batch_tokens


@every_form
def test_groups_are_batches_one_after_the_other(name, options, ragged):
    grouped, plain = new_norm(name, **options), new_norm(name, **options)
    grouped.loss_is_summed = plain.loss_is_summed = True  # as a mean is over more positions
    set_ghost_batch_tokens(grouped, 4)
    for seed in range(2):
        x, mask = ragged(seed)
        g, real = upstream(x, mask), ~mask
        y, grad = step(grouped, x, mask, g)
        # 15 tokens, sentence by sentence, are three groups of five
        groups = [rows.clone().requires_grad_() for rows in x.transpose(0, 1)[real].split(5)]
        outputs = torch.cat([plain(group) for group in groups])
        outputs.backward(g.transpose(0, 1)[real])
        expected = torch.cat([group.grad for group in groups])
        # the same operations on rows that lie elsewhere in memory
        torch.testing.assert_close(y.transpose(0, 1)[real], outputs.detach())
        torch.testing.assert_close(grad.transpose(0, 1)[real], expected)
        assert (y.transpose(0, 1)[mask] == grouped.bias).all() and not grad.transpose(0, 1)[
            mask
        ].any()
    for key, value in state_of(plain).items():
        torch.testing.assert_close(state_of(grouped)[key], value)
    for ours, theirs in zip(grouped.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)


@every_form
def test_a_small_batch_is_one_group(name, options, ragged):
    grouped, plain = new_norm(name, **options), new_norm(name, **options)
    set_ghost_batch_tokens(grouped, 8)  # of 15 tokens
    x, _ = ragged()
    torch.testing.assert_close(grouped(x[:, :1]), plain(x[:, :1]))
    torch.testing.assert_close(state_of(grouped), state_of(plain))


@every_form
def test_a_position_alone_is_one_group(name, options, ragged):
    grouped, plain = new_norm(name, **options), new_norm(name, **options)
    set_ghost_batch_tokens(grouped, 8)
    x = ragged()[0][0, 0]
    torch.testing.assert_close(grouped(x), plain(x))
    torch.testing.assert_close(grouped(x, torch.tensor(False)), plain(x, torch.tensor(False)))
    torch.testing.assert_close(state_of(grouped), state_of(plain))


@every_form
def test_inference_and_padding_alone_know_no_groups(name, options, ragged):
    grouped, plain = new_norm(name, **options), new_norm(name, **options)
    set_ghost_batch_tokens(grouped, 2)
    x, mask = ragged()
    everything = torch.ones_like(mask)
    assert torch.equal(grouped(x, everything), plain(x, everything))
    assert torch.equal(grouped.eval()(x, mask), plain.eval()(x, mask))


@every_form
def test_activation_checkpointing_repeats_every_group(name, options):
    """More groups than forwards are kept of one norm else."""
    generator = torch.Generator().manual_seed(3)
    x, g = torch.randn(2, 40, 1, 12, generator=generator, dtype=torch.float64)
    plain, checkpointed = new_norm(name, **options), new_norm(name, **options)
    gradients = []
    for norm in (plain, checkpointed):
        set_ghost_batch_tokens(norm, 2)
        leaf = x.clone().requires_grad_()
        if norm is plain:
            y = norm(leaf)
        else:
            y = torch.utils.checkpoint.checkpoint(norm, leaf, use_reentrant=False)
        with torch.no_grad():  # as the first forward of another checkpoint, of a single group
            norm(g[:2])
        y.backward(g)
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(state_of(plain), state_of(checkpointed))
