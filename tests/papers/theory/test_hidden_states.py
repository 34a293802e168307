"""The lengths of the hidden states, and whether the lemma's bounds hold."""

from __future__ import annotations

import pytest

from known_cases import BATCHES, verdicts
from papers.theory import hidden_states, models


def test_post_sums_and_pre_outputs_are_as_long_as_the_lemma_says():
    post = models.stack_pass("post", 2, 256, BATCHES, 0)
    assert post.outputs.shape == (3, BATCHES.draw(0).source.numel())
    assert post.outputs[1:].sub(1).abs().max() < 1e-3  # LayerNorm's eps, and float32
    assert set(post.sums) == {"self", "ffn"}
    assert post.sums["ffn"].mean().item() == pytest.approx(1.5, abs=0.1)
    pre = models.stack_pass("pre", 2, 256, BATCHES, 0)
    assert not pre.sums
    for layer in (1, 2):
        low, high = hidden_states.LEMMA["pre", hidden_states.OUTPUT].at(layer)
        assert low <= pre.outputs[layer].mean() <= high


def lengths(values_of_seeds, placement, place):
    return [
        {"tokens": "random", "placement": placement, "place": place, "layer": layer, "seed": seed}
        | {"squared_length": value}
        for seed, values in enumerate(values_of_seeds)
        for layer, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (2.9, [("1", "yes"), ("3", "yes"), ("1 to 3", "yes")]),
        (5.0, [("1", "yes"), ("2", "no"), ("3", "yes"), ("1 to 3", "no")]),  # above
        (1.0, [("1", "yes"), ("2", "no"), ("3", "yes"), ("1 to 3", "no")]),  # below
    ],
)
def test_the_bounds_of_a_single_layer_are_checked(length, expected):
    measured = [[1.6, length, 3.9], [1.7, length + 0.01, 3.8]]
    rows = verdicts(hidden_states, lengths(measured, "pre", hidden_states.OUTPUT))
    assert [(row["layer"], row["holds"]) for row in rows] == expected
    assert (rows[0]["stated"], rows[0]["measured"]) == ("1.50 to 2.50", "1.65")


@pytest.mark.parametrize(("length", "met"), [(1.9, "yes"), (2.2, "no"), (0.8, "no")])
def test_the_bounds_of_the_sum_after_posts_attention_are_checked(length, met):
    rows = verdicts(hidden_states, lengths([[1.1, length], [1.2, length + 0.01]], "post", "self"))
    assert [(row["layer"], row["stated"], row["holds"]) for row in rows] == [
        *(("1", "1.00 to 2.00", "yes"), ("2", "1.00 to 2.00", met)),
        ("1 to 2", "2 within the bounds", met),
    ]


@pytest.mark.parametrize(("values", "met"), [((1.49, 1.51), "yes"), ((1.6, 1.61), "no")])
def test_the_equality_of_post_is_checked(values, met):
    rows = verdicts(hidden_states, lengths([[value, value] for value in values], "post", "ffn"))
    assert [(row["stated"], row["holds"]) for row in rows] == [("1.5", met), ("1.5", "-")]
    mean = f"{sum(values) / 2:.3f}"
    assert [row["measured"] for row in rows] == [mean, f"{mean} to {mean}"]
