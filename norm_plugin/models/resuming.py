"""A resumed run must equal the one that was stopped: the same norms, and the same end.

Many norms have the same parameters, so a checkpoint of one loads into a model with another without
an error, and two runs with fairseq's default ``--save-dir`` share their checkpoints. Therefore the
plans are compared: the placement of each stack, and the norm of each site with its options. A
checkpoint of stock fairseq has LayerNorm. ``--norm-kernels`` may change.

fairseq checks ``--max-update``, ``--stop-time-hours`` and ``--patience`` only after an update, so a
process that resumes a finished run (for example, because its end could not be noted) would train
one more update. fairseq also counts the validations without a better score as attributes of a
function, so such a process would begin at 0 and train longer than one that was never stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY

from norm_plugin.declarations import flags
from norm_plugin.models.config import NESTED
from norm_plugin.models.plan import Plan
from norm_plugin.models.safe_loading import read_state
from norm_plugin.models.settle import settle
from norm_plugin.models.sites import SIDES

logger = logging.getLogger(__name__)

ABSENT = "absent"
COUNTED_IN_UPDATES = "_updates"
"""Options whose names end like this belong to a run's schedule, which a new start may change."""


# ---- what a checkpoint stores of its model --------------------------------------------------


def flat_settings(model: Any) -> dict[str, Any]:
    """Return the settings of a model, a Namespace or a mapping, under fairseq's flat names."""
    settings = dict(vars(model) if isinstance(model, argparse.Namespace) else model)
    for stack in NESTED:
        nested = settings.pop(stack, None)
        if isinstance(nested, Mapping):
            settings.update({f"{stack}_{name}": value for name, value in nested.items()})
    return settings


def settings_of(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the flat settings of the model in a checkpoint's content, or None."""
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    return None if model is None else flat_settings(model)


def stored_state(path: str) -> dict[str, Any]:
    """Return the content of the checkpoint at ``path``; every worker reads it."""
    local = PathManager.get_local_path(path)
    state: dict[str, Any] = read_state(local, path, mmap=zipfile.is_zipfile(local))
    return state


def stacks_of(settings: Mapping[str, Any], otherwise: Sequence[str] = SIDES) -> Sequence[str]:
    """Return the stacks of the model with these flat settings; ``otherwise`` if it is not ours."""
    arch = settings.get("arch") or settings.get("_name")
    sides: Sequence[str] = getattr(ARCH_MODEL_REGISTRY.get(arch), "sides", otherwise)
    return sides


# ---- two plans ------------------------------------------------------------------------------


def differences(
    stored: Plan, given: Plan, anew: bool = False, names: tuple[str, str] = ("stored", "given")
) -> list[str]:
    """Return the differences of two plans, which are called ``names``, one text per difference.

    Args:
        anew: training restarts at update 0, with its own schedule and initialization.
    """
    places: dict[tuple[str, Any, Any], list[str]] = {}  # by what differs, and both values

    def compare(what: str, old: Any, new: Any, place: str) -> None:
        if old != new:
            places.setdefault((what, old, new), []).append(place)

    for side, placement in stored.placement.items():
        compare("placement", placement, given.placement[side], side)
    olds, news = ({choice.site: choice for choice in plan.sites} for plan in (stored, given))
    for site in dict.fromkeys([*olds, *news]):
        old, new = olds.get(site), news.get(site)
        if old is None or new is None or old.norm != new.norm:
            compare("norm", old.norm if old else ABSENT, new.norm if new else ABSENT, site.name)
            continue
        for name, value in old.all_options.items():
            if not (anew and name.endswith(COUNTED_IN_UPDATES)):
                compare(f"{name} of {old.norm}", value, new.all_options[name], site.name)
    tokens = stored.ghost_batch_tokens, given.ghost_batch_tokens
    compare(flags.GHOST_BATCH_TOKENS, *tokens, "all sites")
    compare(flags.EMBEDDING, stored.embedding, given.embedding, "the words")
    if any(choice.site.in_attention for choice in stored.sites):
        compare(flags.QKV_SCOPE, stored.qkv_scope, given.qkv_scope, "queries, keys and values")
    if not anew:
        for side, init in stored.initialization.items():
            compare(flags.INIT, init, given.initialization[side], f"{side} layers")
    return [
        f"{what} of {', '.join(at)}: {names[0]} {old}, {names[1]} {new}"
        for (what, old, new), at in places.items()
    ]


def check_resuming(
    path: str, settings: Any, anew: bool, sides: Sequence[str] = SIDES, plan: Plan | None = None
) -> Plan | None:
    """Raise ValueError if ``path`` has other norms, unless ``--norm-allow-mismatch`` is on.

    Returns:
        The plan of the checkpoint if it differs and may do so; else None.

    Args:
        settings: those of the run's model, ``cfg.model``.
        anew: training restarts at update 0, as with ``--finetune-from-model``.
        plan: that of the model; None: derive it from the settings.

    Raises:
        ValueError: a norm, an option or the placement differs; the message names both. Or the
            checkpoint is of another kind of model.
    """
    given, stored = flat_settings(settings), settings_of(stored_state(path))
    if stored is None:
        logger.warning("%s does not say with which norms it was trained; not checked", path)
        return None
    has_norm_flags = "norm_type" in given
    if not (has_norm_flags or "norm_type" in stored):
        return None
    stored_sides = stacks_of(stored, sides)
    if set(stored_sides) != set(sides):
        raise ValueError(
            f"{path} is a {stored.get('arch') or stored.get('_name')}, which has "
            f"{' and '.join(stored_sides)}, but this model has {' and '.join(sides)}: give a "
            "checkpoint of the same kind of model"
        )
    before = settle(stored, sides)
    differing = "; ".join(differences(before, plan or settle(given, sides), anew))
    if not differing:
        return None
    if given.get(flags.ALLOW_MISMATCH) == "on":
        logger.warning("%s was trained with other norms, as allowed: %s", path, differing)
        return before
    meant = (
        f"; if this is intended, {flags.flag_of(flags.ALLOW_MISMATCH)} on "
        f"(model.{flags.ALLOW_MISMATCH}=on in YAML)"
        if has_norm_flags
        else ""
    )
    elsewhere = "another checkpoint to start from" if anew else "another --save-dir"
    raise ValueError(
        f"{path} was trained with other norms than those of this run: {differing}. "
        f"Give the norms of the checkpoint, or {elsewhere}{meant}"
    )


@contextlib.contextmanager
def reading_on_every_worker(trainer: Any) -> Iterator[None]:
    """Return a context in which every worker reads checkpoints itself, as with
    ``--load-checkpoint-on-all-dp-ranks``.

    By default fairseq reads a checkpoint on the first worker only and sends it to the others as a
    pickle with OmegaConf containers, which torch's safe loader refuses. Their classes must not be
    allowed: unpickling sets any attribute of such a container, even in place of its methods, and
    every checkpoint could then do so.
    """
    settings = trainer.cfg.checkpoint
    before = settings.load_checkpoint_on_all_dp_ranks
    settings.load_checkpoint_on_all_dp_ranks = before or trainer.data_parallel_world_size > 1
    try:
        yield
    finally:
        settings.load_checkpoint_on_all_dp_ranks = before


# ---- the end of a run ------------------------------------------------------------------------

PATIENCE = "norm_plugin_patience"
"""The key of the count in the ``extra_state`` of a checkpoint."""
TRAINING_STATE = "norm_plugin_training_state"
"""The key in it of what :meth:`NormModel.training_state` returns."""
COUNTED = ("best", "num_runs")
"""The attributes: the best score, and the number of validations since."""


def should_stop_early() -> Callable[..., bool] | None:
    """Return the fairseq function that counts validations; None in a program that does not train.

    With ``python -m fairseq_cli.train``, it is in the module of the program.
    """
    for name in ("__main__", "fairseq_cli.train"):
        function: Callable[..., bool] | None
        function = getattr(sys.modules.get(name), "should_stop_early", None)
        if function is not None:
            return function
    return None


def patience_count() -> dict[str, float] | None:
    """Return the count so far; None before the first validation with ``--patience``."""
    function = should_stop_early()
    if not all(hasattr(function, name) for name in COUNTED):
        return None
    return {name: getattr(function, name) for name in COUNTED}


def resume(trainer: Any, extra_state: Mapping[str, Any], anew: bool) -> None:
    """Continue the counts of a checkpoint that ``trainer`` has loaded; train no epoch at its end.

    ``anew``: optimizer or meters are reset, so time and validations are those of another run.
    """
    function, cfg = should_stop_early(), trainer.cfg
    if function is not None and PATIENCE in extra_state and not anew:
        for name in COUNTED:
            setattr(function, name, extra_state[PATIENCE][name])
    if reason := _reason_finished(trainer, extra_state, anew):
        logger.info("nothing to train: %s", reason)
        cfg.optimization.max_epoch = -1  # 0 would be no limit


def _reason_finished(trainer: Any, extra_state: Mapping[str, Any], anew: bool) -> str:
    """Return why the run of a checkpoint is finished; empty: it is not."""
    limits, updates = trainer.cfg.optimization, trainer.get_num_updates()
    if 0 < limits.max_update <= updates:
        return f"{updates} updates are done, and --max-update is {limits.max_update}"
    if anew:
        return ""
    # The stored value, which is equal on all workers
    hours = extra_state.get("previous_training_time", 0) / 3600
    if 0 < limits.stop_time_hours < hours:
        return f"the run has taken {hours:.4g} h, and --stop-time-hours is {limits.stop_time_hours}"
    count = extra_state.get(PATIENCE, {}).get("num_runs", 0)
    patience = trainer.cfg.checkpoint.patience
    if 0 < patience <= count and not trainer.cfg.checkpoint.reset_dataloader:
        return f"the last {count} validations had no better score, and --patience is {patience}"
    return ""
