"""What is logged of a model when it is built: the plan, and what computes each norm."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from norm_plugin.models.plan import Plan
from norm_plugin.norms import Norm, norm_spec


def describe_plan(plan: Plan) -> str:
    """One line: the placement, the norm of each site and the options given for them."""
    chosen = ", ".join(f"{choice.site.name}={choice.norm}" for choice in plan.sites)
    shared: dict[str, object] = {}
    of_sites = []
    for choice in plan.sites:
        own = {
            name: value
            for name, value in choice.options.items()
            if shared.get(name, value) != value
        }
        shared = {**choice.options, **shared}
        if own:
            of_sites.append(f"{choice.site.name}: {_words(own)}")
    given = "; ".join(filter(None, [_words(shared), *of_sites]))
    line = f"norms: placement {_placement(plan)}; {chosen}"
    return line + (f" (options: {given})" if given else "")


def _placement(plan: Plan) -> str:
    """The placement, or that of each stack where they differ."""
    words = set(plan.placement.values())
    if len(words) == 1:
        return words.pop()
    return ", ".join(f"{side} {word}" for side, word in plan.placement.items())


def _words(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def describe_leaks(plan: Plan) -> list[str]:
    """What shows a decoder's positions their future in training, one line for each time span.

    Some norms do so in their warm-up only: see ``BatchStatisticsNorm.mixes_after_warmup``.
    """
    leaking: dict[str, list[str]] = {}
    for choice in plan.sites:
        spec, updates = norm_spec(choice.norm), choice.all_options.get("warmup_updates", 0)
        if choice.site.side != "decoder" or not spec.batch_statistics:
            continue
        if getattr(spec.cls, "mixes_after_warmup", True):
            leaking.setdefault("in training", []).append(choice.site.name)
        elif updates:
            leaking.setdefault(f"in the first {updates} updates", []).append(choice.site.name)
    return [
        f"{when} each target position sees its future through the batch statistics of "
        + ", ".join(sites)
        for when, sites in leaking.items()
    ]


def describe_forms(model: nn.Module, plan: Plan, kernels: bool) -> str:
    """Which sites of a built model kernels compute, and which plain torch.

    Args:
        kernels: this machine has kernels for the run's choice.
    """
    forms: dict[bool, list[str]] = {True: [], False: []}
    for choice in plan.sites:
        norms = [
            module
            for path, module in model.named_modules()
            if isinstance(module, Norm) and choice.site.is_at(path)
        ]
        if norms:
            forms[kernels and any(norm.fused is not None for norm in norms)].append(
                choice.site.name
            )
    words = {True: "by kernels", False: "in plain torch"}
    return "; ".join(f"{words[key]}: {', '.join(at)}" for key, at in forms.items() if at)
