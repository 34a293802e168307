"""The names under which checkpoints store what a norm holds. Another name loses old checkpoints."""

from __future__ import annotations

import pytest

from norm_plugin.norms import NORM_TYPES, build_norm

WINDOWS = "gradients gradients_filled"
STORED = {
    "layernorm": "bias weight",
    "layernorm-simple": "",
    "adanorm": "",
    "rmsnorm": "weight",
    "batchnorm": "bias num_updates running_mean running_var weight",
    "detachnorm": "",
    "detachnorm-mean": "",
    "detachnorm-std": "",
    "dyt": "alpha bias weight",
    "derf": "alpha bias shift weight",
    "groupnorm": "bias weight",
    "none": "",
    "mabn": f"bias {WINDOWS} num_updates running_square squares squares_filled weight",
    "powernorm-v": "bias num_updates psi2 weight",
    "powernorm": "bias nu num_updates psi2 weight",
    "regularized-batchnorm": "bias num_updates running_mean running_var weight",
    "repbn": "bias eta num_updates running_mean running_var weight",
    "scalenorm": "g",
    "seednorm": "alpha b weight",
    "unified": f"bias {WINDOWS} num_updates psi running_square squares squares_filled weight",
}


def test_every_norm_has_its_names_here():
    assert set(STORED) == set(NORM_TYPES)


@pytest.mark.parametrize("name", STORED)
def test_the_stored_names_are_those_of_released_checkpoints(name):
    assert " ".join(sorted(build_norm(name, 8).state_dict())) == STORED[name]
