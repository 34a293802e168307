"""The default of ``--norm-warmup-updates``: the learning-rate warm-up of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from norm_plugin.models.flags import option_field
from norm_plugin.models.placement_choice import chosen_placement
from norm_plugin.models.plan import norm_type_of
from norm_plugin.models.sites import SIDES, present_sites
from norm_plugin.norms import norm_spec

KEY = option_field("warmup_updates")


def default_warmup(args: Any, sides: Sequence[str] = SIDES) -> None:
    """Set ``norm_warmup_updates`` if a chosen norm has a warm-up and its length was not given.

    Args:
        args: the Namespace of a command line, which holds the scheduler's flags too, or the
            ``model`` node of a YAML file, whose root has the node ``lr_scheduler``.
        sides: the stacks that the model has.

    Raises:
        ValueError: the learning-rate scheduler of the run has no warm-up to follow.
    """
    sites = present_sites(args, chosen_placement(args, sides), sides)
    norms = {norm_spec(norm_type_of(args, site, sides)) for site in sites}
    wanted = any(option.name == "warmup_updates" for spec in norms for option in spec.options)
    if not wanted or getattr(args, KEY, None) is not None:
        return
    from_yaml = OmegaConf.is_config(args)
    updates = _from_yaml(args) if from_yaml else getattr(args, "warmup_updates", None)
    if updates is None:
        raise ValueError(
            f"the learning-rate scheduler of this run has no warmup_updates for the norm to use: "
            f"give --{KEY.replace('_', '-')} (model.{KEY} in YAML), 0 for none"
        )
    setattr(args, KEY, int(updates))


def _from_yaml(node: Any) -> Any:
    """``lr_scheduler.warmup_updates`` of the file that ``node`` belongs to, or None."""
    probe = OmegaConf.create({KEY: "${lr_scheduler.warmup_updates}"}, parent=node)
    try:
        return probe[KEY]
    except OmegaConfBaseException:
        return None
