"""The gradient of the last layer, and its exponent in the depth."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from known_cases import ROUNDING, H, gradients_by_hand, verdicts
from papers.theory import last_layer


def test_the_last_layers_gradient_is_that_of_each_position(setting):
    by_hand = gradients_by_hand(setting)
    measured = last_layer.last_layer(setting)
    each, together = torch.linalg.matrix_norm(by_hand), torch.linalg.matrix_norm(by_hand.mean(0))
    assert measured.of_positions == pytest.approx(each.mean().item(), rel=ROUNDING)
    assert measured.of_mean == pytest.approx(together.item(), rel=ROUNDING)
    # of the first 4 channels, at the 7 real positions
    x = setting.model(H)[..., :4].flatten(0, 1)[:7]
    assert measured.squared_length == pytest.approx(x.square().mean().item(), rel=ROUNDING)


def depths(power):
    return [
        {"model": "simplified", "tokens": "random", "placement": "pre", "layers": layers}
        | {"seed": seed, "of_positions": layers**p, "of_mean": 2.0 * layers**p}
        | {"squared_length": float(layers)}
        for seed, p in enumerate((power - 0.001, power + 0.001))
        for layers in (2, 8, 32)
    ]


@pytest.mark.parametrize(
    ("power", "contained", "within"),
    [(-0.5, "yes", "yes"), (-0.45, "no", "yes"), (-0.2, "no", "no"), (-0.8, "no", "yes")],
)
def test_the_theorem_bounds_the_exponent_from_above(power, contained, within):
    for row in verdicts(last_layer, depths(power)):  # of both norms of the gradient
        assert (row["stated"], row["measured"]) == ("at most -0.5 + 0.1", f"{power:.3f}")
        assert (row["contains it"], row["holds"]) == (contained, within)
    (table,) = last_layer.tables(pd.DataFrame(depths(power)))
    assert table["exponent in |x_L|^2"][0].startswith(f"{power:.3f} (")


def test_lengths_that_are_close_have_no_exponent():
    frame = pd.DataFrame(depths(-0.5)).assign(squared_length=1.0)
    assert last_layer.exponent_of(frame, "of_positions").mean == pytest.approx(-0.5)
    assert last_layer.exponent_of(frame, "of_positions", over="squared_length") is None
