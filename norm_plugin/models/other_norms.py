"""``--norm-allow-mismatch on``: load a checkpoint that was trained with other norms.

What the checkpoint and the model share is loaded: the weights of the stock modules, and the gain
and the offset of a norm if both norms have them in the same shape. The other entries of norms and
placements keep their initial values, among them all running statistics of a replaced norm, and
entries that the model does not need are dropped. A log message names them. Anything else that is
missing or unexpected remains the error that it is in torch.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from fairseq.models.ema.ema import EMA
from torch import Tensor, nn

from norm_plugin.models.plan import Plan
from norm_plugin.models.sites import Site

logger = logging.getLogger(__name__)


def site_of(name: str, sites: Iterable[Site]) -> Site | None:
    """Return the site of the norm to which an entry of a model's state belongs, or None."""
    modules = list(accumulate(name.split(".")[:-1], lambda path, part: f"{path}.{part}"))
    return next((site for site in sites if any(map(site.is_at, modules))), None)


def convert_state(
    stored: dict[str, Tensor], model: nn.Module, before: Plan, now: Plan
) -> tuple[list[str], list[str]]:
    """Change ``stored``, the state of a model with plan ``before``, to that of ``model``, in place.

    Returns:
        The names of the entries that keep their initial values, and of those that were dropped.
    """
    norms = [{choice.site: choice.norm for choice in plan.sites} for plan in (before, now)]
    own = model.state_dict()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    anew, dropped = [], []
    for name in dict.fromkeys([*own, *stored]):
        site = site_of(name, [*norms[0], *norms[1]])
        if site is None and "placement" not in name.split("."):
            continue
        old, new = stored.get(name), own.get(name)
        same = _placement_of(name, before) == _placement_of(name, now)
        if site is not None:
            same = same and norms[0].get(site) == norms[1].get(site)
        if new is None:
            dropped.append(name)
            del stored[name]
        elif old is None or old.shape != new.shape or not (name in parameters or same):
            anew.append(name)
            stored[name] = new
        elif site is not None and name.endswith(".weight"):  # gamma, or gamma - 1
            offsets = [plan.at(site).build(old.numel()).weight_offset for plan in (before, now)]
            stored[name] = old + (offsets[0] - offsets[1])
    return anew, dropped


def _placement_of(name: str, plan: Plan) -> str | None:
    """Return the placement of the stack to which an entry of a model's state belongs."""
    return plan.placement.get(name.split(".")[0])


def _listed(names: Iterable[str]) -> str:
    """Return the names as text, merging those that differ only in the number of their layer."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names)) or "nothing"


@contextlib.contextmanager
def loading_other_norms(model: nn.Module, path: str, before: Plan, now: Plan) -> Iterator[None]:
    """Return a context in which ``model`` loads a state that has the norms of plan ``before``.

    Args:
        path: the checkpoint, for the log.
        now: the plan of ``model``.
    """

    loading = True

    def hook(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        if not loading:  # a copy of the model, as that of --store-ema, which has the hook, too
            return
        inner = {name.removeprefix(prefix): value for name, value in state.items()}
        anew, dropped = convert_state(inner, module, before, now)
        state.clear()
        state.update({f"{prefix}{name}": value for name, value in inner.items()})
        logger.warning(
            "%s has other norms: all else is loaded; keep initial values: %s; dropped: %s",
            path,
            _listed(anew),
            _listed(dropped),
        )

    build_fp32_params = EMA.build_fp32_params

    def build_converted(ema: EMA, state: dict[str, Tensor] | None = None) -> None:
        """Convert what ``--ema-fp32`` has stored beside the averaged model, too."""
        if state is not None:
            convert_state(state := dict(state), ema.model, before, now)
        build_fp32_params(ema, state)

    handle = model.register_load_state_dict_pre_hook(hook)
    EMA.build_fp32_params = build_converted
    try:
        yield
    finally:
        loading = False
        handle.remove()
        EMA.build_fp32_params = build_fp32_params


def same_parameters(stored: Mapping[str, Tensor], model: nn.Module, before: Plan) -> bool:
    """Return whether optimizer states over ``stored`` and over ``model`` match by parameter.

    Args:
        before: the plan of the model whose state ``stored`` is.
    """
    buffers = {*_buffers_of_norms(stored, before), *(name for name, _ in model.named_buffers())}
    shapes = {name: value.shape for name, value in stored.items() if name not in buffers}
    own = {name: value.shape for name, value in model.named_parameters(remove_duplicate=False)}
    return shapes == own


def _buffers_of_norms(stored: Mapping[str, Tensor], plan: Plan) -> Iterator[str]:
    """Yield the names that the buffers of the norms of ``plan`` have in ``stored``."""
    for name, weight in stored.items():
        path, _, last = name.rpartition(".")
        choice = next((choice for choice in plan.sites if choice.site.is_at(path)), None)
        if choice is not None and last == "weight":
            for buffer, _ in choice.build(weight.numel()).named_buffers():
                yield f"{path}.{buffer}"
