"""The sites of a Transformer where a norm can stand, and which norm each one gets."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from norm_plugin.norms import NORM_TYPES, Norm, NormSpec, norm_spec
from norm_plugin.norms.base.mixing import check_declaration

LAYERNORM = "layernorm"
IDENTITY = "none"


class Site(NamedTuple):
    """A place in the model.

    Attributes:
        flag: ends ``--norm-type-...``; the two embedding sites share one.
        side: ``encoder`` or ``decoder``.
        attribute: name of fairseq's module there.
    """

    flag: str
    side: str
    attribute: str

    @property
    def name(self) -> str:
        """What the site is called in logs and errors."""
        return self.flag if self.flag.startswith(self.side) else f"{self.side}-{self.flag}"


ENCODER_LAYER_SITES = (
    Site("encoder-self", "encoder", "self_attn_layer_norm"),
    Site("encoder-ffn", "encoder", "final_layer_norm"),
)
DECODER_LAYER_SITES = (
    Site("decoder-self", "decoder", "self_attn_layer_norm"),
    Site("decoder-cross", "decoder", "encoder_attn_layer_norm"),
    Site("decoder-ffn", "decoder", "final_layer_norm"),
)
FINAL_SITES = {
    "encoder": Site("encoder-final", "encoder", "layer_norm"),
    "decoder": Site("decoder-final", "decoder", "layer_norm"),
}
EMBEDDING_SITES = {
    "encoder": Site("embedding", "encoder", "layernorm_embedding"),
    "decoder": Site("embedding", "decoder", "layernorm_embedding"),
}
SITES = (
    *ENCODER_LAYER_SITES,
    FINAL_SITES["encoder"],
    *DECODER_LAYER_SITES,
    FINAL_SITES["decoder"],
    *EMBEDDING_SITES.values(),
)

SITE_FLAGS: dict[str, str] = {
    "encoder": "norm of every encoder site",
    "decoder": "norm of every decoder site",
    "encoder-self": "norm of the encoder's self-attention",
    "encoder-ffn": "norm of the encoder's feed-forward network",
    "encoder-final": "norm after the encoder's last layer (pre-norm only)",
    "decoder-self": "norm of the decoder's self-attention",
    "decoder-cross": "norm of the decoder's attention over the encoder",
    "decoder-ffn": "norm of the decoder's feed-forward network",
    "decoder-final": "norm after the decoder's last layer (pre-norm only)",
    "embedding": "norm of the embeddings (with --layernorm-embedding)",
}
"""Flags more specific than ``--norm-type``, which win over it: ``--norm-type-<key>``."""


def norm_type_field(flag: str) -> str:
    """The configuration key of a site flag: ``encoder-self`` -> ``norm_type_encoder_self``."""
    return "norm_type_" + flag.replace("-", "_")


def norm_type_of(cfg: Any, site: Site) -> str:
    """The norm at ``site``: its own flag, else its side's, else ``--norm-type``.

    A norm with batch statistics asked for by ``--norm-type`` alone leaves the decoder on
    LayerNorm, as in its paper: there it would see the future of each position.
    """
    for flag in (site.flag, site.side):
        chosen = getattr(cfg, norm_type_field(flag), None)
        if chosen is not None:
            return str(chosen)
    if site.side == "decoder" and norm_spec(cfg.norm_type).batch_statistics:
        return LAYERNORM
    return str(cfg.norm_type)


def present_sites(cfg: Any) -> list[Site]:
    """The sites that the model of ``cfg`` has: fairseq builds some only when asked."""
    absent = set()
    for side, final in FINAL_SITES.items():
        if not getattr(cfg, f"{side}_normalize_before", False):
            absent.add(final)
    if getattr(cfg, "no_decoder_final_norm", False):
        absent.add(FINAL_SITES["decoder"])
    if getattr(cfg, "no_cross_attention", False):
        absent.update(site for site in SITES if site.flag == "decoder-cross")
    if not getattr(cfg, "layernorm_embedding", False):
        absent.update(EMBEDDING_SITES.values())
    return [site for site in SITES if site not in absent]


def sites_that_see_the_future(cfg: Any) -> list[Site]:
    """The decoder's sites whose norm mixes positions in training; none unless asked for."""
    decoder = [site for site in present_sites(cfg) if site.side == "decoder"]
    return [site for site in decoder if norm_spec(norm_type_of(cfg, site)).batch_statistics]


def check_site_flags(cfg: Any) -> None:
    """Refuse a flag for a site that the model does not have; raises ValueError."""
    present = {site.flag for site in present_sites(cfg)}
    for site in SITES:
        given = getattr(cfg, norm_type_field(site.flag), None)
        if given is not None and site.flag not in present:
            raise ValueError(
                f"--norm-type-{site.flag} {given}: this model has no such site; its sites are "
                f"{', '.join(sorted(present))} ({SITE_FLAGS[site.flag]})"
            )


def chosen_specs(cfg: Any) -> list[NormSpec]:
    """The norms that at least one site of the model has, in the order of the registry."""
    chosen = {norm_type_of(cfg, site) for site in present_sites(cfg)}
    return [norm_spec(name) for name in NORM_TYPES if name in chosen]


def option_field(name: str) -> str:
    """The configuration key of a norm's option: ``alpha_fwd`` -> ``norm_alpha_fwd``."""
    return "norm_" + name


def options_of(cfg: Any, spec: NormSpec) -> dict[str, Any]:
    """The options given for ``spec``; what was not given keeps the norm's own default."""
    given = {option.name: getattr(cfg, option_field(option.name), None) for option in spec.options}
    return {name: value for name, value in given.items() if value is not None}


def site_options(cfg: Any, site: Site) -> dict[str, Any]:
    """The options of the norm at ``site``: those given, and what it takes in a Transformer."""
    spec = norm_spec(norm_type_of(cfg, site))
    heads = getattr(cfg, f"{site.side}_attention_heads")
    after_encoder = site is FINAL_SITES["encoder"]
    return spec.cls.transformer_options(options_of(cfg, spec), heads, after_encoder)


def build_site(cfg: Any, site: Site, dim: int) -> Norm:
    """The norm of ``site`` over ``dim`` channels; ValueError if it mixes positions unsaid."""
    spec, options = norm_spec(norm_type_of(cfg, site)), site_options(cfg, site)
    norm = spec.build(dim, **options)
    check_declaration(spec, norm, options)
    return norm


def describe_placement(cfg: Any) -> str:
    """``pre-norm``, or what each stack is where they differ."""
    words = {True: "pre-norm", False: "post-norm"}
    sides = {side: words[bool(getattr(cfg, f"{side}_normalize_before"))] for side in FINAL_SITES}
    if len(set(sides.values())) == 1:
        return sides["encoder"]
    return ", ".join(f"{side} {word}" for side, word in sides.items())


def describe_forms(model: nn.Module, kernels: bool) -> str:
    """Which sites of a built model kernels compute, and which plain torch.

    Args:
        kernels: there are kernels on this machine for the run's choice.
    """
    forms: dict[bool, list[str]] = {True: [], False: []}
    for site in SITES:
        modules = [
            module
            for path, module in model.named_modules()
            if isinstance(module, Norm) and _stands_at(path, site)
        ]
        if modules:
            forms[kernels and any(norm.fused is not None for norm in modules)].append(site.name)
    words = {True: "by kernels", False: "in plain torch"}
    return "; ".join(f"{words[key]}: {', '.join(at)}" for key, at in forms.items() if at)


def _stands_at(path: str, site: Site) -> bool:
    parts = path.split(".")
    return parts[0] == site.side and parts[-1] == site.attribute


def describe_sites(cfg: Any) -> str:
    """One line: the placement, the norm of each site and the options given for them."""
    chosen = ", ".join(f"{site.name}={norm_type_of(cfg, site)}" for site in present_sites(cfg))
    shared: dict[str, Any] = {}
    of_sites = []
    for site in present_sites(cfg):
        options = site_options(cfg, site)
        own = {name: value for name, value in options.items() if shared.get(name, value) != value}
        shared = {**options, **shared}
        if own:
            of_sites.append(f"{site.name}: {_words(own)}")
    given = "; ".join(filter(None, [_words(shared), *of_sites]))
    return f"norms: {describe_placement(cfg)}; {chosen}" + (f" (options: {given})" if given else "")


def _words(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
