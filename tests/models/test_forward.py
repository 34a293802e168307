"""Norms inside a model: padding, activation checkpointing, decoding step by step, copies."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
from torch import nn

from in_process import DISTINCT
from norm_plugin.norms import Norm, norm_spec

every_norm = pytest.mark.parametrize("name", DISTINCT)
EVERY_SITE = ("--norm-placement", "pre", "--layernorm-embedding")


def everywhere(name, *flags):
    """The flags for ``name`` at every site, the decoder's too, with a warm-up of one update."""
    if norm_spec(name).has_option("warmup_updates"):
        flags = ("--norm-warmup-updates", "1", *flags)
    return ("--norm-type", name, "--norm-type-decoder", name, *EVERY_SITE, *flags)


def step(model, batch, pad):
    """Loss, gradients and statistics of one training forward and backward in float64."""
    model.zero_grad()
    logits = model(**batch)[0]
    real = batch["prev_output_tokens"].ne(pad).unsqueeze(-1)
    loss = (logits.square() * real).sum()
    loss.backward()
    return loss.detach(), {key: value.grad for key, value in model.named_parameters()}


@every_norm
@pytest.mark.usefixtures("softmax_in_float64")
def test_padding_columns_change_nothing(name, build, batch, task):
    pad = task.source_dictionary.pad()
    wider = {
        "src_tokens": torch.nn.functional.pad(batch["src_tokens"], (3, 0), value=pad),
        "src_lengths": batch["src_lengths"],
        "prev_output_tokens": torch.nn.functional.pad(
            batch["prev_output_tokens"], (0, 2), value=pad
        ),
    }
    plain, padded = (build(*everywhere(name)).double() for _ in range(2))
    for update in range(3):
        plain.set_num_updates(update)
        padded.set_num_updates(update)
        loss, grads = step(plain, batch, pad)
        padded_loss, padded_grads = step(padded, wider, pad)
        # float64 sums in another order, through two layers: far below any real effect
        close = {"rtol": 1e-9, "atol": 1e-9}
        torch.testing.assert_close(padded_loss, loss, **close)
        for key, grad in grads.items():
            torch.testing.assert_close(padded_grads[key], grad, **close, msg=key)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(padded.state_dict()[key], value, **close, msg=key)


def test_a_mask_as_high_as_wide_is_read_rightly_at_every_site(build, batch, task):
    """A transposed mask also fits if there are as many times as sentences, without an error."""
    pad = task.source_dictionary.pad()
    times = len(batch["src_tokens"])
    square = {key: value[:, :times] for key, value in batch.items() if key != "src_lengths"}
    square["src_tokens"] = batch["src_tokens"][:, -times:]
    square["src_lengths"] = square["src_tokens"].ne(pad).sum(dim=1)
    square["prev_output_tokens"][3, 1:] = pad  # else this mask would be its own transpose
    model = build(*everywhere("batchnorm")).double()
    seen = {}
    for name, norm in model.named_modules():
        if isinstance(norm, Norm):
            norm.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args}))
    model(**square)
    masks = {"encoder": square["src_tokens"].eq(pad)}
    masks["decoder"] = square["prev_output_tokens"].eq(pad)
    assert not any(torch.equal(mask, mask.t()) for mask in masks.values())
    assert set(seen) == {name for name, module in model.named_modules() if isinstance(module, Norm)}
    for name, (x, mask, batch_first) in seen.items():
        assert torch.equal(mask, masks[name.partition(".")[0]]), name
        assert batch_first == name.endswith("layernorm_embedding"), name
        assert x.shape[:2] == (times, times), name


@pytest.mark.parametrize("name", ["powernorm", "mabn"])
def test_calls_of_one_norm_with_equal_inputs_are_repeated_in_their_order(name, build, batch, task):
    """The streams of hyper-dynamic are equal at the start, and what each call uses is not."""
    pad = task.source_dictionary.pad()
    flags = ("--norm-type", name, "--norm-placement", "hyper-dynamic", "--norm-warmup-updates", "0")
    plain, checkpointed = build(*flags), build(*flags, "--checkpoint-activations")
    for model in (plain.double(), checkpointed.double()):
        for key, parameter in model.named_parameters():  # else the calls hardly matter
            if ".mix." in key:
                parameter.data.copy_(
                    torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter)
                )
    for update in range(2):
        plain.set_num_updates(update)
        checkpointed.set_num_updates(update)
        _, grads = step(plain, batch, pad)
        _, other_grads = step(checkpointed, batch, pad)
        for key, grad in grads.items():
            # float64 sums in another order
            torch.testing.assert_close(other_grads[key], grad, rtol=1e-9, atol=1e-9, msg=key)


def test_a_model_can_be_pickled(build, batch):
    """torch.save(model) and torch.multiprocessing pickle a model."""
    model = build(*everywhere("powernorm")).eval()
    again = pickle.loads(pickle.dumps(model))
    assert again.cfg == model.cfg and again.cfg.plan.sites == model.cfg.plan.sites
    assert torch.equal(again(**batch)[0], model(**batch)[0])


def test_no_mask_is_kept_after_a_forward(build, batch):
    model = build(*everywhere("batchnorm"))
    model(**batch)
    masks = [m.padding.mask for m in model.modules() if hasattr(m, "padding")]
    assert masks == [None] * 2  # of the two stacks
    with pytest.raises(RuntimeError, match="outside of the forward of the .*Encoder that"):
        model.encoder.layernorm_embedding(torch.ones(3, 2, 64))


class Frozen(nn.Dropout):
    def train(self, mode=True):
        return super().train(False)


def test_threads_may_share_a_model_in_inference(build, batch):
    """Under ``residual``, the output of the final norm is added to a stream of the same forward."""
    encoder = build("--norm-placement", "residual").eval().encoder
    sources = (batch["src_tokens"], batch["src_tokens"].flip(0))
    expected = [encoder(source)["encoder_out"][0] for source in sources]
    found, here = {}, threading.current_thread()
    other = threading.Thread(target=lambda: found.update(other=encoder(sources[1])))
    in_norm, done = threading.Event(), threading.Event()

    def interleave(norm, inputs):
        """Let the other thread reach the norm before this one leaves it, and leave it after it."""
        if threading.current_thread() is here:
            other.start()
            assert in_norm.wait(60)
        else:
            in_norm.set()
            assert done.wait(60)

    encoder.layer_norm.register_forward_pre_hook(interleave)
    found["here"] = encoder(sources[0])
    done.set()
    other.join(60)
    outputs = [found[name]["encoder_out"][0] for name in ("here", "other")]
    assert all(map(torch.equal, outputs, expected))


def test_modes_are_set_as_torch_sets_them(build):
    model = build("--norm-type", "batchnorm")
    layer = model.encoder.layers[0]
    layer.frozen, layer.scripted = Frozen(), torch.jit.script(nn.Dropout())
    layer.missing, layer.empty = None, nn.ModuleList([])
    ours, theirs = [], []
    for mode in (False, True):
        nn.Module.train(model, mode)
        theirs.append({path: module.training for path, module in model.named_modules()})
        nn.Module.train(model, not mode)
        assert model.train(mode) is model
        ours.append({path: module.training for path, module in model.named_modules()})
    assert ours == theirs
    with pytest.raises(ValueError, match="boolean"):
        model.train("yes")
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
        model.train(1.0)


def test_a_part_with_a_train_of_its_own_stays_frozen(build):
    model = build("--norm-type", "batchnorm").eval()
    model.encoder.train = lambda mode=True: model.encoder
    model.train()
    assert not any(module.training for module in model.encoder.modules())
    assert model.training and all(module.training for module in model.decoder.modules())
