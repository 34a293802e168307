"""Every claim, in the order of the page."""

from __future__ import annotations

from norm_plugin.analysis.theory import (
    concentration,
    detached,
    every_layer,
    hidden_states,
    jacobian,
    last_layer,
    lipschitz,
    trained_layers,
)
from norm_plugin.analysis.theory.claim import Claim

CLAIMS: dict[str, Claim] = {
    module.CLAIM.name: module.CLAIM
    for module in (
        hidden_states,
        last_layer,
        every_layer,
        trained_layers,
        concentration,
        jacobian,
        detached,
        lipschitz,
    )
}
