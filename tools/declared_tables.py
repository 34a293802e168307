"""What norms, placements and patches declare, as Markdown for the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import yaml
from torch import Tensor

from norm_lab.report.text import markdown
from norm_plugin.declarations.flags import site_flags
from norm_plugin.io.files import read_text
from norm_plugin.models import patches
from norm_plugin.norms import NORM_TYPES, NormSpec, Option, declared_options, norm_spec
from norm_plugin.placements import (
    BRANCHES,
    FINAL,
    PLACEMENTS,
    LayerPlace,
    Placement,
    overrides,
    placement_class,
)

_CHANNELS, _HEADS = 960, 48  # no other size of a parameter is as large


# ---- norms ----------------------------------------------------------------------------------


def norms_table() -> str:
    """Return Markdown: one row per norm."""
    rows = []
    for name in NORM_TYPES:
        spec = norm_spec(name)
        norm = spec.build(_CHANNELS)
        rows.append(
            {
                "`--norm-type`": f"`{name}`",
                "formula": f"`{spec.formula}`",
                "paper": _cited(spec),
                "gradient": "exact" if spec.cls.exact_gradient else "not exact",
                "parameters": _shapes(norm.named_parameters()),
                "statistics": _shapes(norm.named_buffers()),
                "how its released code differs": spec.released or "-",
            }
        )
    return markdown(pd.DataFrame(rows))


def _table(rows: Iterable[tuple[str, ...]], *head: str) -> str:
    return markdown(pd.DataFrame(rows, columns=list(head)))


def _cited(declared: NormSpec | type[Placement]) -> str:
    """Return the paper of a norm or a placement, marked if its text could not be read."""
    return declared.paper if declared.paper_read else f"{declared.paper} \\*"


def _shapes(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return ``weight, eta (1)``; a counter, which is not a statistic, is omitted."""
    statistics = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point()]
    return ", ".join(name + _shape(tensor) for name, tensor in statistics) or "none"


def _shape(tensor: Tensor) -> str:
    """Return `` (4, C)``, or nothing for one value per channel."""
    names = {_CHANNELS: "C", _HEADS: "heads"}
    shape = ", ".join(str(names.get(size, size)) for size in tensor.shape) or "1"
    return "" if shape == "C" else f" ({shape})"


def options_table() -> str:
    """Return Markdown: one row per meaning of an option, with the norms that have this meaning."""
    rows = []
    for owners in declared_options().values():
        for meaning in dict.fromkeys(option.help for _, option in owners):
            own = [(name, option) for name, option in owners if option.help == meaning]
            option = own[0][1]
            names = ", ".join(name for name, _ in own)
            values = f" {option.type_name}" if "|" in option.type_name else ""
            rows.append((f"`{option.flag}`{values}", _defaults(own), names, meaning))
    return _table(rows, "flag", "default", "norms", "meaning")


def sites_table() -> str:
    """Return Markdown: the flags that choose norms and their place."""
    return _table([(f"`{flag}`", text) for flag, text in site_flags()], "flag", "meaning")


def _defaults(owners: list[tuple[str, Option]]) -> str:
    values = {option.default for _, option in owners}
    if len(values) == 1:
        return str(values.pop())
    return ", ".join(f"{option.default} ({name})" for name, option in owners)


# ---- placements -----------------------------------------------------------------------------

LAYERS = 8  # in the stack that represents any; enough for placements that differ by layer


def placements_table() -> str:
    """Return Markdown: one row per placement."""
    rows = [(f"`{name}`", f"`{cls.equation}`", _cited(cls)) for name, cls in PLACEMENTS.items()]
    return _table(rows, "`--norm-placement`", "equation", "paper")


def placement_norms_table() -> str:
    """Return Markdown: the norms of each placement, what else it has, and what can be folded."""
    rows = [
        (f"`{name}`", _norms(cls), _besides(cls), _folds(cls))
        for name, cls in ((name, placement_class(name)) for name in PLACEMENTS)
    ]
    return _table(rows, "placement", "norms", "also has", "folds")


def place(index: int) -> LayerPlace:
    """Return a layer of a decoder of :data:`LAYERS`, which has every branch."""
    return LayerPlace("decoder", index, LAYERS, LAYERS, _CHANNELS, BRANCHES, _HEADS)


def each_layer(cls: type[Placement]) -> dict[type[Placement], list[int]]:
    """Return the placement of each layer, and the numbers of the layers that have it."""
    layers: dict[type[Placement], list[int]] = {}
    for index in range(1, LAYERS + 1):
        layers.setdefault(cls.at(place(index)), []).append(index)
    return layers


def _norms(cls: type[Placement]) -> str:
    """Return the norms of a layer and of its stack, as text."""
    kinds = each_layer(cls)
    texts = []
    for kind, layers in kinds.items():
        text = _by_branch({branch: ", ".join(kind.norms_of(branch)) for branch in BRANCHES})
        first, last = layers[0], layers[-1]
        of = f"layer {first}" if first == last else f"layers {first} to {last}"
        texts.append((f"({of}) " if len(kinds) > 1 else "") + (text or "none"))
    return "; ".join([*texts, *(["after the stack"] if cls.final_norm else [])])


def _by_branch(texts: dict[str, str]) -> str:
    """Return ``input, output``, or ``self, cross: input; ffn: inner`` if branches differ."""
    if len(set(texts.values())) == 1:
        return texts[BRANCHES[0]]
    groups = {
        text: ", ".join(branch for branch, other in texts.items() if other == text)
        for text in texts.values()
    }
    return "; ".join(f"{branches}: {text}" for text, branches in groups.items())


def _besides(cls: type[Placement]) -> str:
    """Return the parameters of a layer that are the placement's own, and its initial weights."""
    own = cls.at(place(1))(place(1)).named_parameters()
    parameters = ", ".join(f"`{name}`{_shape(value)}" for name, value in own)
    parts = [parameters] if parameters else []
    if overrides(cls, "initialize"):
        parts.append(f"initial weights: {inspect.getdoc(cls.initialize)}")
    return "; ".join(parts) or "-"


def _folds(cls: type[Placement]) -> str:
    """Return which norms with running statistics can be folded, by branch."""
    texts = {branch: _fold_of(cls, branch) for branch in BRANCHES}
    folds = _by_branch(texts) if any(texts.values()) else "-"
    if cls.final_norm:
        folds += ", no" if cls.reason_not_foldable(FINAL) else ", yes"
    return folds


def _fold_of(cls: type[Placement], branch: str) -> str:
    """Return whether the norms of a branch can be folded, all or none: yes, no, or empty."""
    slots = [(kind, slot) for kind in each_layer(cls) for slot in kind.norms_of(branch)]
    if not slots:
        return ""
    return "no" if any(kind.reason_not_foldable(slot) for kind, slot in slots) else "yes"


# ---- patches --------------------------------------------------------------------------------


def patches_table() -> str:
    """Return Markdown: one row per function."""
    rows = [
        (f"`{patch.path}`", " ".join((patch.around.__doc__ or "").split()), f"`{patch.test}`")
        for patch in patches.PATCHES
    ]
    return _table(rows, "function", "reason", "test")


def field_commands_table(path: Path) -> str:
    """Return Markdown: the examples of fairseq in field_commands.yaml, and the other commands."""
    examples, rows = [], []
    for name, row in yaml.safe_load(read_text(path)).items():
        publisher, _, place = row["source"].partition(", ")
        if publisher == "fairseq":
            examples.append(f"`{place}`")
        else:
            rows.append((name, row["source"], f"`{row['norm']}`"))
    commands = f"- of fairseq: {', '.join(dict.fromkeys(examples))}\n- of papers:"
    return f"{commands}\n\n{_table(rows, 'command', 'source', 'flags of ours')}"
