"""Replace the LayerNorms and RMSNorms of any torch model by a norm of the registry, in one call.

>>> from norm_plugin.norms import replace_norms
>>> for replaced in replace_norms(model, "powernorm", warmup_updates=4000):
...     print(replaced)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from norm_plugin.norms.base.causality import warn_of_leaks
from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.formula import BY_HAND, Formula, formula_of
from norm_plugin.norms.base.initializing import initialize_with_model
from norm_plugin.norms.base.padding_mask import PaddingMask
from norm_plugin.norms.base.position_leak_check import check_declaration
from norm_plugin.norms.base.registry import NormSpec, norm_spec
from norm_plugin.norms.base.saved_replacement import (
    Call,
    record_replacement,
    recorded_replacements,
)
from norm_plugin.norms.base.selection import Patterns, select, unwrapped


class Replaced(NamedTuple):
    """A norm that was replaced.

    Attributes:
        path: the module's path, as in ``model.named_modules()``, inside wrappers of the model.
        was: the name of its former class.
        norm: the new norm.
        carried: which of weight, bias and eps it keeps from the old norm.
        shift: what was added to the values of the old norm's gain, since the parameter means
            another thing in the new norm: 1 where gamma was 1 + weight, as in Gemma, and is weight
            now. Weights of the old model must be loaded before, not after.
        added: the names of parameters that the old norm did not have. An optimizer that was built
            before does not train them.
    """

    path: str
    was: str
    norm: Norm
    carried: tuple[str, ...]
    shift: float = 0.0
    added: tuple[str, ...] = ()

    def __str__(self) -> str:
        carried = f", which keeps {', '.join(self.carried)}" if self.carried else ""
        shift = (
            f"; {self.shift:+g} was added to its gain: load no old weights" if self.shift else ""
        )
        return f"{self.path}: {self.was} -> {type(self.norm).__name__}{carried}{shift}"


def replace_norms(
    model: nn.Module,
    name: str,
    *,
    mask: str | None = "attention_mask",
    batch_first: bool = True,
    causal: bool | None = None,
    only: Patterns = None,
    keep: Patterns = None,
    **options: Any,
) -> list[Replaced]:
    """Replace the LayerNorms and RMSNorms inside ``model`` by norm ``name``, in place.

    The new norm takes over the gain and the offset of the old one as its ``weight`` and ``bias`` if
    it has these: the parameters themselves, so that an optimizer keeps them. It takes over eps if
    it has that option and ``options`` do not set it. The eps is measured, since some classes fix it
    in their code: see :mod:`norm_plugin.norms.base.formula`. Where the gain of the old norm is
    1 + weight, as in Gemma, so is that of a new norm with the option ``gain``; for other norms, 1
    is added to the values of the parameter, so that weights of the old model must be loaded before.
    A module that is used in several places stays one module.

    A model of transformers initializes the new norms where it initializes others: those parameters
    and statistics that a checkpoint lacks, as in the ``from_pretrained`` of a subclass. Its
    ``save_pretrained`` writes what was replaced, in it or in a part of it, into the configuration,
    by which :func:`load_replaced` loads the model with its norms.

    A norm with batch statistics excludes padding in training. It gets the padding from the argument
    ``mask`` of the forward of ``model``, so in training call ``model`` itself, not a part of it. If
    the argument is None, no position is padding. In a causal model, such a norm lets each position
    see its future in training, of which a warning is given. Whether a model that reads tokens is
    causal is seen from its classes or by calling it in inference, else ``causal`` has to say so.

    Args:
        name: one of ``NORM_TYPES``.
        mask: the argument of ``model.forward`` with the mask, (B, T). If its name ends in
            ``padding_mask``, it is True at padding; else 0 at padding. None: no input has padding.
        batch_first: inside the model x is (B, T, C), as in transformers; False: (T, B, C).
        causal: whether each position sees only those before it; None: the model shows it.
        only: the paths of the norms to replace, or patterns of them as in a shell, such as
            ``"encoder.*"``; None: all. With batch statistics, norms of queries, keys and values
            stay: these are normalized position by position.
        keep: the paths, or patterns of them, of norms that stay.
        options: the options of the norm.

    Returns:
        The replaced norms, in the order of ``model.named_modules()``.

    Raises:
        ValueError: the norm or an option is unknown, or the norm mixes positions without declaring
            it; the model has no norm to replace; a norm to be replaced has hooks, does not compute
            what its name says, or has an eps that cannot be measured; or the padding would be
            unknown to a norm with batch statistics, or it is unknown whether the model is causal.
            The model is unchanged then.
    """
    only, keep = (
        each if each is None or isinstance(each, str) else [*each] for each in (only, keep)
    )
    call = Call(name, mask, batch_first, causal, only, keep, norm_spec(name).parse(options))
    model = unwrapped(model)
    replaced = replace_by(model, call)
    record_replacement(model, call)
    return replaced


def replace_by(model: nn.Module, call: Call, shift_gains: bool = True) -> list[Replaced]:
    """Replace the norms of ``model`` as :func:`replace_norms` does, which has the errors.

    Args:
        shift_gains: False if the values of gains will be loaded, those of the new norms.
    """
    name, mask, batch_first, causal, only, keep, options = call
    spec = norm_spec(name)
    places = select(model, only, keep, spec.batch_statistics)
    _check_layout(model, batch_first)
    # Build all norms before the first is installed: after an error the model is unchanged
    eps = spec.has_option("eps") and "eps" not in options
    olds = {id(place.old): place for place in reversed(places)}  # the first place of each
    formulas = {
        key: formula_of(place.old, place.path, eps_needed=eps) for key, place in olds.items()
    }
    with torch.device("cpu"):  # tensors on the default device meta could not be moved to another
        built = {
            key: spec.build(formula.width, **_options_for(formula, spec, options))
            for key, formula in formulas.items()
        }
    for norm in built.values():
        check_declaration(spec, norm, dict(norm.built_with))
    warn_of_leaks(model, name, next(iter(built.values())), causal)
    carried = {
        key: _carry_over(olds[key].old, formulas[key], norm, model) for key, norm in built.items()
    }
    shifts = _gain_shifts(model, built, formulas) if shift_gains else {}
    added = {
        key: tuple(n for n, _ in norm.named_parameters() if n not in carried[key])
        for key, norm in built.items()
    }
    if spec.batch_statistics and mask:
        padding = PaddingMask(model)
        padding.hold_argument(model, mask)
        for key, norm in built.items():
            padding.attach(norm, batch_first, olds[key].path)
    for gain, shift in shifts.items():
        gain.data.add_(shift)
    for place in places:
        setattr(place.parent, place.attribute, built[id(place.old)])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # which torch's fused inference alone reads
    initialize_with_model(model)
    kept_eps = ("eps",) if eps else ()
    return [
        Replaced(
            path,
            type(old).__name__,
            built[id(old)],
            (*carried[id(old)], *kept_eps),
            _shift_of(built[id(old)], shifts),
            added[id(old)],
        )
        for _, _, path, old in places
    ]


def _options_for(formula: Formula, spec: NormSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the norm in place of one with ``formula``: its eps and kind of gain."""
    own: dict[str, Any] = {"eps": formula.eps} if spec.has_option("eps") else {}
    if spec.has_option("gain") and formula.unit:
        own["gain"] = "1+w"
    return {**own, **options}


def _carry_over(old: nn.Module, formula: Formula, norm: Norm, model: nn.Module) -> tuple[str, ...]:
    """Give ``norm`` the parameters, device, dtype and mode of ``old``.

    If ``old`` has no parameters, device and dtype are those of the first parameter of ``model``.
    Where ``old`` (else ``model``) is frozen, so are parameters that ``norm`` has in addition.

    Returns:
        The names of the parameters that it keeps.
    """
    likes = list(old.parameters()) or list(model.parameters())
    like = next((parameter for parameter in likes if parameter.is_floating_point()), None)
    if like is not None:
        norm.to(device=like.device, dtype=like.dtype)
    norm.train(old.training)
    norm.requires_grad_(not likes or any(parameter.requires_grad for parameter in likes))
    own: dict[str, Tensor] = dict(norm.named_parameters(recurse=False))
    carried = []
    for name, former in (("weight", formula.gain), ("bias", formula.offset)):
        if former and name in own and own[name].shape == getattr(old, former).shape:
            setattr(norm, name, getattr(old, former))
            carried.append(name)
    return tuple(carried)


def _gain_shifts(
    model: nn.Module, built: Mapping[int, Norm], formulas: Mapping[int, Formula]
) -> dict[Tensor, float]:
    """Return what is to be added to each parameter, since gamma is 1 + weight in some norms.

    Raises:
        ValueError: the modules that share a parameter need different values of it.
    """
    shifts: dict[Tensor, set[float]] = {}
    for module in model.modules():
        norm, formula = built.get(id(module)), formulas.get(id(module))
        for name, parameter in module.named_parameters(recurse=False):
            if norm is None or formula is None:
                shifts.setdefault(parameter, set()).add(0.0)
            elif name == formula.gain and getattr(norm, "weight", None) is parameter:
                shifts.setdefault(parameter, set()).add(formula.unit - norm.weight_offset)
    if any(len(different) > 1 for different in shifts.values()):
        raise ValueError(
            f"{type(model).__name__} shares the gain of a norm, 1 + weight there, with a module in "
            f"which it is another value; untie them. {BY_HAND}"
        )
    needed = {parameter: shift for parameter, (shift,) in shifts.items() if shift}
    if any(parameter.is_meta for parameter in needed):
        raise ValueError(
            f"the gain of a norm of {type(model).__name__} would be another function of its weight "
            "(1 + weight, or weight), but the model has no weights yet, as inside from_pretrained: "
            "replace the norms of a loaded model, or choose a norm and a gain= that keep it"
        )
    return needed


def _shift_of(norm: Norm, shifts: Mapping[Tensor, float]) -> float:
    weight: Tensor | None = getattr(norm, "weight", None)
    return 0.0 if weight is None else shifts.get(weight, 0.0)


def _check_layout(model: nn.Module, batch_first: bool) -> None:
    """Raise ValueError if torch's attention in ``model`` expects the other layout of x."""
    for attention in model.modules():
        if isinstance(attention, nn.MultiheadAttention) and attention.batch_first != batch_first:
            raise ValueError(
                f"the attention of {type(model).__name__} has batch_first={attention.batch_first}, "
                f"but replace_norms was given batch_first={batch_first}; give the same"
            )


def _disable_fast_path(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    """Disable torch's fused inference of a layer that gets a norm, also by hand: a global hook.

    It reads the weights of the layer's norms as LayerNorm's, and calls no norm.
    """
    if isinstance(child, Norm) and isinstance(parent, nn.TransformerEncoderLayer):
        parent.activation_relu_or_gelu = 0  # "an activation that the fused kernel lacks"


register_module_module_registration_hook(_disable_fast_path)


def load_replaced(cls: Any, folder: Any, **kwargs: Any) -> Any:
    """Load a model of transformers with the norms that :func:`replace_norms` gave it.

    ``cls.from_pretrained`` would build the norms of the class, and call the weights of the others
    unexpected.

    Args:
        cls: the class of the model, such as ``BertModel``.
        folder: where ``save_pretrained`` has written it.
        kwargs: arguments of ``cls.from_pretrained``.

    Raises:
        ValueError: its configuration names no replaced norms, or ``cls`` is no class of a model.
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):  # AutoModel builds another class
        raise ValueError(f"{cls} is not the class of a model, such as BertModel; give that class")

    def build(model: Any, config: Any, *args: Any, **more: Any) -> None:
        cls.__init__(model, config, *args, **more)
        for part, call in recorded_replacements(model, config):
            replace_by(part, call, shift_gains=False)
            record_replacement(part, call)

    with_norms = type(cls.__name__, (cls,), {"__init__": build, "__module__": cls.__module__})
    model = with_norms.from_pretrained(folder, **kwargs)  # type: ignore[attr-defined]
    model.__class__ = cls
    return model
