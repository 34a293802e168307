"""What every model of this plugin does, whatever its task: flags, plan, logs, the NaN check."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import MODEL_REGISTRY, BaseFairseqModel, FairseqEncoder
from fairseq.modules import FairseqDropout
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, open_dict
from torch import nn

from norm_plugin.kernels import describe, has_kernels, resolve, set_kernels
from norm_plugin.models.config import KERNELS_FOUND, NormConfig, build_config, config_class
from norm_plugin.models.divergence import NanCheck
from norm_plugin.models.initialization import T_FIXUP
from norm_plugin.models.plan import IDENTITY, Plan
from norm_plugin.models.sites import SIDES
from norm_plugin.models.stacks import check_layer_drop
from norm_plugin.norms import Norm, norm_spec
from norm_plugin.norms.base.statistics import BatchStatisticsNorm, set_ghost_batch_tokens

logger = logging.getLogger(__name__)


class NormModel(BaseFairseqModel):
    """A fairseq model with the norms of its plan. Put this before fairseq's class in the bases.

    Register such a model without a dataclass: only then do flags, architecture defaults and YAML
    all reach a model in both ``fairseq-train`` and ``fairseq-hydra-train``. fairseq then does not
    check the keys of the model, so :func:`norm_plugin.models.config.build_config` does.

    Attributes:
        sides: the stacks of the model.
        tasks: the registered names of its tasks; tasks of other models of this plugin are refused.
        stock_settings: the settings of fairseq's model, which define the flags other than ours.
        nan_check: checks the inputs of the norms; None with ``--norm-nan-check off``.
        remark: what must be reported with the scores of the model.
    """

    sides: ClassVar[tuple[str, ...]] = SIDES
    tasks: ClassVar[tuple[str, ...]] = ()
    stock_settings: ClassVar[type[FairseqDataclass]] = NormConfig
    nan_check: NanCheck | None = None
    remark: str = ""
    updates_done = 0
    _counting: list[Any] | None = None  # what has set_num_updates; a walk costs a GPU's host time
    cfg: NormConfig

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add the flags of fairseq's model and those of the norms."""
        settings = config_class(cls.stock_settings)()
        gen_parser_from_dataclass(parser, settings, delete_default=True, with_prefix="")

    @classmethod
    def build_model(cls, args: argparse.Namespace | DictConfig, task: Any) -> Any:
        """Build the model from flags or YAML; ValueError for a wrong setting or task.

        The chosen norms are logged and written into ``args``, which fairseq stores with the run.
        """
        check_task(cls, task)
        cfg = build_config(args, cls.sides)
        plan, kernels = cfg.plan, resolve(cfg.plan.kernels)
        with open_dict(args) if isinstance(args, DictConfig) else contextlib.nullcontext():
            for name, value in {**plan.to_settings(), KERNELS_FOUND: describe(kernels)}.items():
                setattr(args, name, value)
        logger.info(describe_plan(plan))
        for line in (*describe_leaks(plan), *describe_initialization(plan)):
            logger.warning(line)
        model = cls.build_planned(cfg, task)
        model.args = args  # fairseq's models have it, and other code reads it
        if plan.ghost_batch_tokens is not None:
            set_ghost_batch_tokens(model, plan.ghost_batch_tokens)
        for side in cls.sides:
            check_layer_drop(model.stack(side))
        set_kernels(model, plan.kernels)
        forms = describe_forms(model, plan, has_kernels(kernels))
        logger.info("norm kernels: %s; %s", describe(kernels), forms)
        if plan.nan_check:
            model.nan_check = NanCheck(model)
        return model

    @classmethod
    def build_planned(cls, cfg: NormConfig, task: Any) -> NormModel:
        """Build the model of ``cfg`` with the norms of ``cfg.plan``; its ``cfg`` is this object."""
        raise NotImplementedError(f"{cls.__name__} does not define build_planned()")

    @classmethod
    def extra_yaml_keys(cls) -> set[str]:
        """Return the YAML keys that neither ``stock_settings`` nor an architecture names."""
        return set()

    def stack(self, side: str) -> Any:
        """Return the encoder or the decoder: the module with the layers and the final norm."""
        return getattr(self, side)

    def maps_after_encoder(self) -> list[tuple[nn.Module, str]]:
        """Return the linear maps outside the stacks that receive the encoder's output, for folding.

        Each is a module and the path of a map in it; the module may average over positions first.
        """
        return []

    def training_state(self) -> dict[str, Any]:
        """Return what resuming within an epoch needs besides parameters and buffers.

        All workers call it; the first worker's result is stored in the checkpoint. Empty: nothing.
        """
        return {}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`training_state` returned; not called if that was empty."""

    def load_state_dict(
        self, state_dict: Any, strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load as fairseq does, pruning by ``--encoder-layers-to-keep``; a pruned state is loaded
        unchanged, and the settings continue to say which layers there are."""
        settings = args if model_cfg is None else model_cfg
        return super().load_state_dict(state_dict, strict, pruning_of(self, state_dict, settings))

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare as fairseq does; ``--retain-dropout-modules`` takes fairseq's class names."""
        given = kwargs.get("retain_dropout_modules")
        if given is not None:
            kwargs["retain_dropout_modules"] = dropouts_named(self, given)
        super().make_generation_fast_(**kwargs)

    def train(self, mode: bool = True) -> NormModel:
        """Set whether every module trains, as torch does; fairseq calls this twice per update.

        torch sets it by recursive calls, which take 4 % of an update of a GPU's host.
        """
        given: Any = mode
        if not isinstance(given, bool):
            return super().train(mode)  # torch's error
        own = nn.Module.train, nn.Module.__setattr__
        modules: list[nn.Module] = [self]
        for module in modules:
            state = vars(module)
            state["training"] = mode
            for child in state["_modules"].values():
                if child is None:
                    continue
                cls: Any = type(child)
                # One that freezes itself has a train of its own: model.encoder.train = ...
                if (cls.train, cls.__setattr__) == own and "train" not in vars(child):
                    modules.append(child)
                else:
                    child.train(mode)
        return self

    def set_num_updates(self, num_updates: int) -> None:
        """Set the updates done; log if training restarts with existing running statistics."""
        modules = self._counting
        if modules is None:
            # FairseqEncoder's own only tells the modules inside it, which are listed
            modules = self._counting = [
                module
                for module in self.modules()
                if hasattr(module, "set_num_updates")
                and type(module).set_num_updates is not FairseqEncoder.set_num_updates
                and module is not self
            ]
        norms = (m for m in modules if isinstance(m, BatchStatisticsNorm) and not m.counts_forwards)
        first = next(norms, None)
        if first is not None and num_updates < first.updates_counted:
            logger.info(
                "training restarts at update %d: the norms keep the running statistics of %d "
                "updates, and their warm-up restarts",
                num_updates,
                first.updates_counted + 1,  # the stored count precedes the last update
            )
        self.updates_done = num_updates
        if self.nan_check is not None:
            self.nan_check.set_num_updates(self, num_updates)
        for module in modules:
            module.set_num_updates(num_updates)


def pruning_of(
    model: NormModel, state: Mapping[str, Any], settings: Any
) -> argparse.Namespace | None:
    """Return the settings by which fairseq prunes ``state`` to the layers of ``model``, or None.

    fairseq prunes the state of every checkpoint that it loads, and either both stacks or none.
    """
    keep = {side: getattr(settings, f"{side}_layers_to_keep", None) for side in model.sides}
    if not any(keep.values()):
        return None
    for side in model.sides:
        matches = (re.match(rf"{side}\..*?\blayers\.(\d+)\.", name) for name in state)
        found = sorted({int(match.group(1)) for match in matches if match})
        if not keep[side] or len(found) == len(model.stack(side).layers):
            keep[side] = ",".join(map(str, found))
    return argparse.Namespace(arch="any", **{f"{side}_layers_to_keep": keep[side] for side in keep})


def dropouts_named(model: nn.Module, given: str | Sequence[str]) -> list[str]:
    """Return the names of the dropouts of ``model`` that ``--retain-dropout-modules`` selects.

    fairseq names a dropout after the class that contains it. ``TransformerEncoderLayer`` also
    selects those of ``TransformerEncoderLayerBase`` and of ``NormTransformerEncoderLayer``.

    Raises:
        ValueError: no dropout has any of the names; the message lists the valid ones.
    """
    names = re.findall(r"\w+", given) if isinstance(given, str) else list(given)
    dropouts = [module for module in model.modules() if isinstance(module, FairseqDropout)]
    present = dict.fromkeys(str(dropout.module_name) for dropout in dropouts)
    meant = [name for name in present if _stock_name(name) in map(_stock_name, names)]
    if not meant:
        raise ValueError(
            f"--retain-dropout-modules {given} names no dropout of this model; choose from "
            f"{', '.join(map(_stock_name, present))}"
        )
    return meant


def _stock_name(name: str) -> str:
    """Return the name of the fairseq class from which a class of ours derives, without ``Base``."""
    return name.removeprefix("Norm").removesuffix("Base")


def check_task(model: type[NormModel], task: object) -> None:
    """Raise ValueError if ``task`` is for other models of this plugin than ``model``.

    A task that no model declares is accepted; a model that declares none accepts any task.
    """
    models = {name: cls for name, cls in MODEL_REGISTRY.items() if issubclass(cls, NormModel)}
    declared = {name for cls in models.values() for name in cls.tasks}
    given = {name for name in declared if isinstance(task, TASK_REGISTRY[name])}
    if not given or not model.tasks or given.intersection(model.tasks):
        return
    own = next((name for name, cls in models.items() if cls is model), model.__name__)
    fit = [name for name, cls in models.items() if given.intersection(cls.tasks)]
    raise ValueError(
        f"{own} is not a model for --task {' or '.join(sorted(given))}: give --task "
        f"{' or '.join(model.tasks)}, or --arch {' or '.join(fit)}"
    )


# ---- log messages about a built model -------------------------------------------------------


def describe_plan(plan: Plan) -> str:
    """Return one line: the placement, the norm of each site and the options given for them."""
    placement = ", ".join(f"{side} {name}" for side, name in plan.placement.items())
    if len(set(plan.placement.values())) == 1:
        placement = next(iter(plan.placement.values()))
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
            of_sites.append(f"{choice.site.name}: {_listed(own)}")
    given = "; ".join(filter(None, [_listed(shared), *of_sites]))
    line = f"norms: placement {placement}; {chosen}"
    return line + (f" (options: {given})" if given else "")


def _listed(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def describe_leaks(plan: Plan) -> list[str]:
    """Return warnings, one per time span, that norms show a decoder's positions their future.

    Some norms do so only in their warm-up: see ``BatchStatisticsNorm.mixes_after_warmup``.
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


def describe_initialization(plan: Plan) -> list[str]:
    """Return warnings about unusual combinations of norms and initial weights, one line each."""
    normed = {choice.site.side for choice in plan.sites if choice.norm != IDENTITY}
    return [
        "--norm-init t-fixup replaces norms and the warm-up of the learning rate, but the "
        f"{side} has norms; give --norm-type none for T-Fixup"
        for side, init in plan.initialization.items()
        if init == T_FIXUP and side in normed
    ]


def describe_forms(model: nn.Module, plan: Plan, kernels: bool) -> str:
    """Return which sites of a model are computed by kernels, and which in plain torch."""
    norms = {path: norm for path, norm in model.named_modules() if isinstance(norm, Norm)}
    forms: dict[str, list[str]] = {"by kernels": [], "in plain torch": []}
    for choice in plan.sites:
        fused = [norm.fused for path, norm in norms.items() if choice.site.is_at(path)]
        if fused:
            by_kernels = kernels and any(form is not None for form in fused)
            forms["by kernels" if by_kernels else "in plain torch"].append(choice.site.name)
    return "; ".join(f"{how}: {', '.join(sites)}" for how, sites in forms.items() if sites)
