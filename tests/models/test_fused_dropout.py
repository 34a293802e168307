"""``--norm-fused-dropout on``: dropout and residual sum of a branch in one pass."""

from __future__ import annotations

import pytest
import torch

from norm_plugin.kernels import dropout as fused
from norm_plugin.kernels import set_kernels
from norm_plugin.kernels.choice import BACKENDS
from norm_plugin.placements import OUTPUT, PLACEMENTS, overrides

ON = ("--norm-fused-dropout", "on")
HALF = ("--dropout", "0.5")


def loss_and_gradients(model, batch, seed=3):
    """The sum of squares of the logits and its gradients, in float64."""
    torch.manual_seed(seed)
    model.double().zero_grad()
    loss = model(**batch)[0].square().sum()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.fixture
def calls(monkeypatch):
    """What each computed pass was given: the stream, p, the seed and the backend."""
    seen = []
    compute = fused._compute

    def counted(stream, branch, p, seed, ops):
        seen.append((stream, p, seed, ops))
        return compute(stream, branch, p, seed, ops)

    monkeypatch.setattr(fused, "_compute", counted)
    return seen


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_kernels_and_plain_torch_train_alike(placement, build, batch):
    flags = (*HALF, *ON, "--norm-placement", placement)
    plain = loss_and_gradients(build(*flags, "--norm-kernels", "off"), batch)
    loss, gradients = loss_and_gradients(build(*flags), batch)
    # float64: rounding differs where a product and a sum are contracted; a mask would move it all
    torch.testing.assert_close(loss, plain[0], rtol=1e-9, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain[1][name], rtol=1e-7, atol=1e-9, msg=name)


def test_it_computes_by_the_kernels_that_are_chosen(build, batch, calls):
    native, description = BACKENDS["cpu"].load()
    if native is None:
        pytest.skip(f"no cpu kernels here: {description}")
    by_flag = build(*HALF, *ON, "--norm-kernels", "off")
    by_call = build(*HALF, *ON)
    set_kernels(by_call, "off")
    again = build(*HALF, *ON, "--norm-kernels", "off")
    set_kernels(again, "cpu")
    for model, wanted in ((by_flag, None), (by_call, None), (again, native)):
        calls.clear()
        loss_and_gradients(model, batch)
        assert calls and all(ops is wanted for *_, ops in calls)


def test_inference_drops_nothing_unless_asked_to(build, batch):
    model = build(*HALF, *ON).eval()
    logits = model(**batch)[0]
    assert torch.equal(logits, build(*HALF).eval()(**batch)[0])
    model.make_generation_fast_(retain_dropout=True)
    assert not torch.equal(logits, model(**batch)[0])


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_takes_it_or_says_why_not(name, build, batch, calls):
    """It changes nothing without dropout."""
    cls = PLACEMENTS[name]
    ends_in_a_sum = not overrides(cls, "join") and all(
        OUTPUT not in cls.norms_of(branch) for branch in ("self", "cross", "ffn")
    )
    if ends_in_a_sum:
        loss, gradients = loss_and_gradients(build("--norm-placement", name), batch)
        other_loss, others = loss_and_gradients(build(*ON, "--norm-placement", name), batch)
        assert torch.equal(loss, other_loss)
        assert all(torch.equal(gradients[key], others[key]) for key in gradients)
        assert not calls  # no pass more, and no random number drawn
    else:
        with pytest.raises(ValueError, match="needs branches that end in x \\+ f"):
            build(*ON, "--norm-placement", name)
