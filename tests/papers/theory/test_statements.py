"""The verdicts on claims about single norms: each statement fails where it is not met."""

from __future__ import annotations

import math

import pytest

from known_cases import verdicts
from papers.theory import CLAIMS
from papers.theory.adaptive_scale import LINEAR
from papers.theory.assumption_two import LIMITS

START = {"model": "start", "layer_scale": 0, "tokens": "random", "placement": "pre"}
MET = {
    "adaptive-scale": {
        **{"phi": LINEAR, "positions": 5, "phi_error": 0.0},
        **{"z_least": -0.2, "z_largest": -0.2, "share_outside": 0.01},
    },
    "assumption-two": {
        **{**START, "norm": "powernorm", "channels": 8, "mean_length2": 8.0},
        **{"largest_length2": 99.0, "largest_square": 99.0, "nu": 1.0, "nu_bound": 2.0},
        **{f"{what}_within_{limit}": 1.0 for limit in LIMITS for what in ("positions", "channels")},
    },
    "batch-gradients": {**START, "norm": "batchnorm", "lemma_error": 0.0, "equation_error": 0.0},
    "bounded-gradient": {**START, "share": 1.2, "step": 0.1, "nu": 1.0, "gradient": 1.0},
    "detached": {
        **{"norm": "detachnorm", "mean_error": 0.0, "variance_excess": 0.0, "variance_error": 0.0},
        **{"positions": 5, "variance_ratio": 1.0, "least_variance_ratio": 1.0},
    },
    "gain-over-psi": {
        **{**START, "norm": "powernorm", "identity_error": 0.0},
        **{"largest": 1.0, "mean": 0.5, "channels_above": 0.0},
    },
    "lipschitz": {
        **{**START, "norm": "powernorm-v", "identity_error": 0.0, "mean_share": 0.9},
        **{"largest_share": 1.0, "channels_above": 0.0, "mean_ratio": 1.1, "channels_longer": 0.5},
    },
}
"""Measurements by which all statements of a claim are met."""
SIMPLE = {"norm": "layernorm-simple"}  # of which inequalities are stated, not equalities


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("adaptive-scale", {}, ["yes", "yes", "yes"]),
        ("adaptive-scale", {"phi_error": 1e-8}, ["no", "yes", "yes"]),
        ("adaptive-scale", {"z_largest": -0.19}, ["yes", "no", "yes"]),
        ("adaptive-scale", {"z_least": -0.21}, ["yes", "no", "yes"]),
        ("adaptive-scale", {"share_outside": 0.011}, ["yes", "yes", "no"]),
        ("assumption-two", {}, ["yes", "yes", "yes"]),
        ("assumption-two", {"largest_length2": 100.1}, ["no", "yes", "yes"]),
        ("assumption-two", {"largest_square": 100.1}, ["yes", "no", "yes"]),
        ("assumption-two", {"nu": 2.1}, ["yes", "yes", "no"]),
        ("assumption-two", {"nu": math.nan}, ["yes", "yes"]),
        ("batch-gradients", {}, ["yes", "yes"]),
        ("batch-gradients", {"lemma_error": 1e-8}, ["no", "yes"]),
        ("batch-gradients", {"equation_error": 1e-8}, ["yes", "no"]),
        ("bounded-gradient", {}, ["yes", "yes", "yes", "-"]),
        ("bounded-gradient", {"gradient": 1.01}, ["yes", "yes", "no", "-"]),
        ("detached", {}, ["yes", "yes"]),
        ("detached", {"mean_error": 1e-8}, ["no", "yes"]),
        ("detached", {"variance_error": 1e-8}, ["yes", "no"]),
        ("detached", {**SIMPLE, "variance_error": 0.5}, ["yes", "yes"]),
        ("detached", {**SIMPLE, "variance_excess": 1e-8}, ["yes", "no"]),
        ("gain-over-psi", {}, ["yes", "yes"]),
        ("gain-over-psi", {"identity_error": 1e-8}, ["no", "yes"]),
        ("gain-over-psi", {"largest": 1.001}, ["yes", "no"]),
        ("lipschitz", {}, ["yes", "yes"]),
        ("lipschitz", {"identity_error": 1e-3}, ["no", "yes"]),
        ("lipschitz", {"largest_share": 1.001}, ["yes", "no"]),
        ("lipschitz", {"norm": "powernorm"}, ["-"]),  # nothing is stated of it
    ],
)
def test_a_statement_holds_where_it_is_met(name, changed, expected):
    rows = verdicts(CLAIMS[name], [{**MET[name], **changed}])
    assert [row["holds"] for row in rows] == expected
