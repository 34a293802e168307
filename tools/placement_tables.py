"""What the placements declare, as Markdown for the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from markdown_table import markdown
from norm_plugin.placements import (
    BRANCHES,
    FINAL,
    PLACEMENTS,
    LayerPlace,
    Placement,
    overrides,
    placement_class,
)

FINAL_FOLDS = "in the encoder only, as an output projection can take no offset"
LAYERS = 8  # of the stack that stands for any; enough for a placement that differs by layer
_CHANNELS, _HEADS = 960, 48  # of the parameters that are shown; no other size of theirs is as large


def placements_table() -> str:
    """Markdown: a row a placement."""
    rows = [("`--norm-placement`", "equation", "paper", "paper read")]
    rows += [
        (f"`{name}`", f"`{cls.equation}`", cls.paper, "yes" if cls.paper_read else "no")
        for name, cls in PLACEMENTS.items()
    ]
    return markdown(rows)


def placements_text() -> str:
    """Markdown: a section a placement."""
    return "\n\n".join(_section(name) for name in PLACEMENTS)


def _section(name: str) -> str:
    cls = placement_class(name)
    summary = (inspect.getdoc(cls) or "").splitlines()[0]
    own_weights = overrides(cls, "initialize")
    weights = inspect.getdoc(cls.initialize) if own_weights else "fairseq's own"
    lines = [
        f"### {name}",
        "",
        summary,
        "",
        f"- Norms: {_norms(cls)}.",
        f"- Learned, norms aside: {_parameters(cls)}.",
        f"- Initial weights: {str(weights).rstrip('.')}.",
        f"- Folds: {_folds(cls)}.",
    ]
    return "\n".join(lines)


def place(index: int) -> LayerPlace:
    """A layer of a decoder of :data:`LAYERS`, which has every branch."""
    return LayerPlace("decoder", index, LAYERS, LAYERS, _CHANNELS, BRANCHES, _HEADS)


def _each_layer(cls: type[Placement]) -> dict[type[Placement], list[int]]:
    """The placement of each layer, and the numbers of the layers that have it."""
    found: dict[type[Placement], list[int]] = {}
    for index in range(1, LAYERS + 1):
        found.setdefault(cls.at(place(index)), []).append(index)
    return found


def _norms(cls: type[Placement]) -> str:
    """Where a layer and its stack have norms."""
    kinds = _each_layer(cls)
    texts = []
    for kind, layers in kinds.items():
        text = _by_branch({branch: ", ".join(kind.norms_of(branch)) for branch in BRANCHES})
        of = f"layers {layers[0]} to {layers[-1]} of {LAYERS}: " if len(kinds) > 1 else ""
        texts.append(of + (text or "none"))
    return "; ".join([*texts, *(["after the stack"] if cls.final_norm else [])])


def _by_branch(texts: dict[str, str]) -> str:
    """``input, output``, or ``self, cross: input; ffn: inner`` where branches differ."""
    if len(set(texts.values())) == 1:
        return texts[BRANCHES[0]]
    groups = {
        text: ", ".join(branch for branch, other in texts.items() if other == text)
        for text in texts.values()
    }
    return "; ".join(f"{branches}: {text}" for text, branches in groups.items())


def _parameters(cls: type[Placement]) -> str:
    """The parameters of a layer that are the placement's own."""
    words = {_CHANNELS: "C", _HEADS: "heads"}
    found = [
        f"`{name}` ({', '.join(str(words.get(size, size)) for size in value.shape)})"
        for name, value in cls.at(place(1))(place(1)).named_parameters()
    ]
    return ", ".join(found) or "nothing"


def _folds(cls: type[Placement]) -> str:
    """What norms with running statistics fold, and why others do not."""
    texts = {branch: _fold_of(cls, branch) for branch in BRANCHES}
    found = [_by_branch(texts)] if any(texts.values()) else []
    if cls.final_norm:
        reason = cls.why_it_stays(FINAL)
        found.append(f"after the stack: {f'no ({reason})' if reason else FINAL_FOLDS}")
    return "; ".join(found) or "there is no norm"


def _fold_of(cls: type[Placement], branch: str) -> str:
    """The same for a branch, whose norms fold together or not at all."""
    positions = [(kind, one) for kind in _each_layer(cls) for one in kind.norms_of(branch)]
    stay = _distinct(
        f"no (the norm at {position}: {reason})"
        for kind, position in positions
        if (reason := kind.why_it_stays(position))
    )
    return "; ".join(stay) or ("yes" if positions else "")


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
