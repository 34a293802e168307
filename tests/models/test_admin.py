"""Admin: what it measures in the first training forward of each layer, and when."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch

from norm_plugin.placements import LayerPlace, placement_class
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


def test_admin_goes_on_from_the_last_layer_below_that_was_measured():
    """LayerDrop leaves the second of three layers out of the first forward."""
    branches = ("self", "ffn")
    first, second, third = layers = [
        placement_class("admin")(LayerPlace("encoder", index, 3, 0, 4, branches))
        for index in (1, 2, 3)
    ]
    for below, layer in pairwise(layers):
        layer.follow(below)
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))

    def run(*of_them):
        for layer in of_them:
            layer.end(layer.join(layer.begin(x), 2 * x, branches[0]))

    run(*(layer.eval() for layer in layers))
    assert not any(layer.measured for layer in layers)  # inference measures nothing
    run(first.train(), third.train())
    assert first.variance > 2 and not second.measured
    assert third.start[0] == first.variance.sqrt()
    run(second.train())  # in a later forward
    assert second.start[0] == first.variance.sqrt()


def record(placement, seen, x, fx, branch):
    seen.append((x.detach(), fx.detach()))
    return type(placement).join(placement, x, fx, branch)
