"""What is measured: a norm with its options, written in the same way everywhere."""

from __future__ import annotations

from typing import NamedTuple

from norm_plugin.norms import NORM_TYPES, Norm, build_norm, norm_spec

SIZES = ((4096, 512), (4096, 1024))
"""Rows and channels at which the targets hold, and which the documentation shows."""
HEADS = 8
"""Groups of a layer-scale by heads: those of a base Transformer."""
ALWAYS = 1_000_000
"""A warm-up that no measurement outlives."""


class Setup(NamedTuple):
    """A norm and the options that are not its defaults, as ``key=value`` with blanks between."""

    norm: str
    options: str = ""

    def values(self) -> dict[str, str]:
        """The options by name."""
        return dict(word.split("=", 1) for word in self.options.split())

    def build(self, channels: int) -> Norm:
        """The norm; raises ValueError for an unknown norm or option."""
        return build_norm(self.norm, channels, **self.values())

    @property
    def word(self) -> str:
        """As :func:`parse_setup` reads it."""
        return ":".join(filter(None, [self.norm, self.options.replace(" ", ",")]))

    def __str__(self) -> str:
        return f"{self.norm} {self.options}".strip()


def parse_setup(text: str) -> Setup:
    """``powernorm:variant=released,sync=on``; raises ValueError for what does not exist."""
    norm, _, options = text.partition(":")
    known = {option.name: option for option in norm_spec(norm).options}
    setup = Setup(norm, " ".join(options.split(",")).strip())
    for word in setup.options.split():
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            raise ValueError(
                f"{word!r} is not key=value with an option of {norm}: {', '.join(known)}"
            )
        known[name].parse(value)
    return setup


PN_V = 1.4  # what powernorm-v may cost


def _powernorm(bound: float, options: str) -> dict[Setup, float]:
    """After its warm-up, and in it, when it is PN-V and may cost what that may."""
    return {
        Setup("powernorm", f"{options} warmup_updates={updates}"): at_most
        for updates, at_most in ((0, bound), (ALWAYS, max(bound, PN_V)))
    }


TARGETS: dict[Setup, float] = {
    Setup("layernorm-simple"): 1.0,
    Setup("detachnorm"): 1.0,
    Setup("detachnorm-mean"): 1.0,
    Setup("detachnorm-std"): 1.0,
    Setup("adanorm"): 1.0,
    Setup("adanorm", "variant=released"): 1.0,
    Setup("rmsnorm"): 1.0,
    Setup("scalenorm"): 1.0,
    Setup("dyt"): 1.0,
    Setup("batchnorm"): 1.4,
    Setup("powernorm-v"): PN_V,
    **_powernorm(1.3, "layer_scale_groups=0"),
    **_powernorm(1.3, "layer_scale_groups=1"),
    **_powernorm(1.5, f"layer_scale_groups={HEADS}"),
    **_powernorm(1.5, f"variant=released layer_scale_groups={HEADS}"),
}
"""What a layer may cost at most, forward and backward, as a ratio to torch.nn.LayerNorm. A norm
that is not named here is measured and has no target."""


def layer_setups() -> list[Setup]:
    """Every norm of the registry: as its targets say, or else with its defaults."""
    return [
        setup
        for name in NORM_TYPES
        for setup in [target for target in TARGETS if target.norm == name] or [Setup(name)]
    ]
