"""Admin: what it measures in the first training forward of each layer, and when."""

from __future__ import annotations

from functools import partial

import torch

from norm_plugin.models.other_norms import loading_other_norms
from stacks_by_hand import NARROW


def test_admin_weighs_the_stream_by_the_variance_of_what_came_before(build, batch):
    model = build(*NARROW, "--norm-placement", "admin").double()
    seen = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        seen[side] = []
        for layer in stack.layers:
            layer.placement.join = partial(record, layer.placement, seen[side])
    model(**batch)
    starts = {
        side: torch.cat([layer.placement.start for layer in getattr(model, side).layers])
        for side in seen
    }
    for side, branches in seen.items():
        omega = [1.0]
        for x, fx in branches:
            variance = (omega[-1] * x).var(correction=0) + fx.var(correction=0)
            omega.append(variance.sqrt().item())
        wanted = torch.tensor(omega[:-1], dtype=torch.float64)
        # the variances are taken in float32
        torch.testing.assert_close(starts[side], wanted, rtol=1e-5, atol=0)
    model(**batch)
    for side, start in starts.items():
        again = torch.cat([layer.placement.start for layer in getattr(model, side).layers])
        assert torch.equal(again, start)


def test_layer_drop_leaves_out_no_layer_of_the_first_forward(build, batch):
    def starts(*flags):
        model = build(*NARROW, "--norm-placement", "admin", *flags)
        model.eval()(**batch)  # inference measures nothing
        torch.manual_seed(7)
        model.train()(**batch)
        assert (len(list(model.encoder.layers)) < 3) == bool(flags)  # of a later forward
        return {key: value for key, value in model.state_dict().items() if "start" in key}

    torch.testing.assert_close(
        starts("--encoder-layerdrop", "0.7", "--decoder-layerdrop", "0.7"), starts(), rtol=0, atol=0
    )


def test_other_norms_keep_what_was_measured(build, batch):
    """With ``--norm-allow-mismatch on``; the placement is the same, as is the learned part."""
    flags = (*NARROW, "--norm-placement", "admin")
    trained, model = build(*flags), build(*flags, "--norm-type", "rmsnorm")
    trained(**batch)
    state = trained.state_dict()
    with loading_other_norms(model, "path", trained.cfg.plan, model.cfg.plan):
        model.load_state_dict(state)
    loaded = model.state_dict()
    names = [name for name in loaded if ".placement." in name]
    assert any(name.endswith("measured") and loaded[name] == 1 for name in names)
    assert all(torch.equal(loaded[name], state[name]) for name in names)


def record(placement, seen, x, fx, branch):
    seen.append((x.detach(), fx.detach()))
    return type(placement).join(placement, x, fx, branch)
