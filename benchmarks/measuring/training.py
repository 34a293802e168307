"""fairseq's trainer on real batches, for a norm or for stock fairseq, one update at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.models import register_model_architecture
from fairseq.trainer import Trainer

from measuring.command import CPU
from measuring.setups import Setup
from norm_plugin.checkpoints.reestimate import train_batches
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.recipes import read_recipe, training_flags
from norm_plugin.kernels import set_kernels
from norm_plugin.models.architectures import multi30k_tiny
from norm_plugin.models.flags import option_field

RECIPES = ("iwslt14_de_en", "multi30k_cpu")
"""A base Transformer and a tiny one."""
STOCK = Setup("stock")
"""fairseq's own Transformer with LayerNorm."""
# fairseq has no such architecture
register_model_architecture("transformer", "transformer_multi30k_tiny")(multi30k_tiny)


def training_argv(
    setup: Setup, data: Path, tiny: bool = False, device: str = CPU, recipe_name: str = RECIPES[0]
) -> list[str]:
    """The command line of fairseq-train: a recipe on ``device``, with ``setup`` in its place.

    Args:
        data: a folder of binarized data.
        tiny: a tiny model, to try things.
        device: cpu or cuda.
        recipe_name: of :data:`RECIPES`.
    """
    norm = "layernorm" if setup == STOCK else setup.norm
    recipe = read_recipe(recipe_name, [f"norm={norm}", *(["size=smoke"] if tiny else [])])
    recipe["common"].update(cpu=device == CPU, user_dir=None, log_format="none")
    # the data comes first on the line, and says itself which languages it has
    recipe["task"].update(data=None, source_lang=None, target_lang=None)
    model = recipe["model"]
    if setup == STOCK:
        stock = {name: value for name, value in model.items() if not name.startswith("norm_")}
        before = {f"{stack}_normalize_before": True for stack in ("encoder", "decoder")}
        recipe["model"] = {**stock, "_name": model["_name"].replace("norm_", "", 1), **before}
    else:
        model.update({option_field(name): value for name, value in setup.values().items()})
    return [str(data), *training_flags(recipe)]


class Run:
    """A training run of ``setup``, of which nothing is saved.

    Args:
        data: a folder of binarized data.
        kernels: a word of ``--norm-kernels``.
        tiny: of a tiny model.
        device: cpu or cuda.
        recipe_name: of :data:`RECIPES`.

    Raises:
        CommandError: ``data`` is no such folder.
    """

    def __init__(
        self,
        setup: Setup,
        data: Path,
        kernels: str,
        tiny: bool = False,
        device: str = CPU,
        recipe_name: str = RECIPES[0],
    ) -> None:
        if len(list(data.glob("dict.*.txt"))) != 2:
            raise CommandError(f"{data} lacks dict.*.txt; give a folder of fairseq-preprocess")
        parser = options.get_training_parser()
        argv = training_argv(setup, data, tiny, device, recipe_name)
        args = options.parse_args_and_arch(parser, argv)
        self.device = device
        self.cfg = convert_namespace_to_omegaconf(args)
        self.task = tasks.setup_task(self.cfg.task)
        self.model = self.task.build_model(self.cfg.model)
        set_kernels(self.model, kernels)
        criterion = self.task.build_criterion(self.cfg.criterion)
        self.trainer: Any = Trainer(self.cfg, self.task, self.model, criterion)

    def batches(self, number: int) -> list[Any]:
        """The first ``number`` batches of the run."""
        return list(itertools.islice(train_batches(self.model, self.cfg, self.task), number))

    def updates(self, batches: Sequence[Any]) -> Callable[[], None]:
        """A call that makes one update on the next batch: forward, backward, optimizer."""
        turn = iter(batches)

        def update() -> None:
            with metrics.aggregate(new_root=True):  # else fairseq adds up all that it logs
                self.trainer.train_step([next(turn)])
            if self.device != CPU:
                torch.cuda.synchronize()  # what is queued belongs to this update

        return update
