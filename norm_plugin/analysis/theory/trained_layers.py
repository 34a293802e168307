"""The gradient of every layer once more, of models that have been trained."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairseq.modules import FairseqDropout
from torch import nn

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.seeds import Sample
from norm_plugin.analysis.theory.activations import mean_loss
from norm_plugin.analysis.theory.batches import Batch, of_sample
from norm_plugin.analysis.theory.claim import Claim, Findings, Options, Row, Table, with_interval
from norm_plugin.analysis.theory.every_layer import PAPER, factor
from norm_plugin.analysis.theory.gradients import layer_gradients
from norm_plugin.analysis.theory.rows import group
from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import load_checkpoint, num_updates
from norm_plugin.checkpoints.reestimate import train_batches
from norm_plugin.commands.command_line import CommandError

BATCHES = 8
"""Of the training data, in the order of the run. The fit takes them in place of seeds."""
STACK = ("placement", "norm", "updates", "stack", "checkpoint")
"""The columns that tell one stack of one model apart."""


def measure_once(options: Options) -> list[Row]:
    """The gradient of W^2 of each layer of each checkpoint, in the first batches of its data."""
    return [
        row
        for name, path in short_names(options.checkpoints).items()
        for row in of_checkpoint(path, name, options.data)
    ]


def short_names(paths: Iterable[Path]) -> dict[str, Path]:
    """Each file once, by its name with as many of its folders as no other file has."""
    files = {Path(os.path.abspath(path)).parts: path for path in paths}

    def name(parts: tuple[str, ...]) -> str:
        tails = (parts[-count:] for count in range(1, len(parts) + 1))
        alone = (t for t in tails if sum(other[-len(t) :] == t for other in files) == 1)
        return Path(*next(alone)).as_posix()

    return {name(parts): path for parts, path in files.items()}


def of_checkpoint(path: Path, name: str, data: Path | None) -> list[Row]:
    """The rows of one checkpoint.

    Args:
        name: of the checkpoint in the rows.
        data: the binarized data; None: the folder that the run was trained on.

    Raises:
        CommandError: the checkpoint cannot be read, or does not fit the data.
    """
    updates = num_updates(load_checkpoint(path))
    model, cfg, task = build_model(path, data)
    without_dropout(model.train())
    pad, rows = task.target_dictionary.pad(), list[Row]()
    for seed, sample in enumerate(itertools.islice(train_batches(model, cfg, task), BATCHES)):
        batch: Batch = of_sample(sample)
        loss = mean_loss(model, batch, pad)
        layers = [
            (side, number, layer.fc2)
            for side in ("encoder", "decoder")
            for number, layer in enumerate(getattr(model, side).layers, start=1)
        ]
        if min(len(model.encoder.layers), len(model.decoder.layers)) < 2:
            raise CommandError(f"{path} has a stack of one layer; a factor a layer needs two")
        gradients = layer_gradients([w2 for *_, w2 in layers], loss)
        rows += [
            {
                "checkpoint": name,
                "placement": model.cfg.plan.placement[side],
                "norm": str(model.cfg.norm_type),
                "updates": updates,
                "stack": side,
                "seed": seed,
                "layer": number,
                "gradient": gradient,
            }
            for (side, number, _), gradient in zip(layers, gradients)
        ]
    return rows


def without_dropout(model: nn.Module) -> None:
    """Switch dropout off in a model in training mode, whose norms then see the batch."""
    for module in model.modules():
        if isinstance(module, (FairseqDropout, nn.Dropout)):
            module.p = 0.0


def find(rows: list[Row]) -> Findings:
    """The factor of each stack of each checkpoint."""
    sentences: list[str] = []
    table: list[tuple[str, ...]] = []
    stacks = by_stack(rows)
    named = shared(stacks, "placement", "norm", "updates", "stack")
    like_others = shared(stacks, "placement", "updates", "stack")
    for key, some in stacks.items():
        placement, norm, updates, stack, checkpoint = key
        found = factor(some)
        losses = group(some, "layer")
        first, last = (
            sum(row["gradient"] for row in losses[(layer,)]) / len(losses[(layer,)])
            for layer in (min(losses)[0], max(losses)[0])
        )
        ratio = f"{first / last:.3f}" if last else "undefined"
        which = (str(checkpoint),) if named else ()
        table.append((*which, placement, norm, str(updates), stack, with_interval(found), ratio))
        if placement in PAPER:
            where = f"`{placement}`, {stack}, after {updates} updates"
            if key in like_others:
                where += f" ({checkpoint or norm})"
            sentences.append(f"{where}: {said(found, PAPER[placement])}")
    header = ("placement", "norm", "updates", "stack", "factor a layer", "first layer / last layer")
    return Findings(sentences, [Table((*(("checkpoint",) if named else ()), *header), table)])


def by_stack(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each stack of each model; files that name no checkpoint have None."""
    return group([{"checkpoint": None, **row} for row in rows], *STACK)


def shared(stacks: Iterable[tuple[Any, ...]], *columns: str) -> set[tuple[Any, ...]]:
    """The ``stacks`` that are equal to another one in ``columns``."""
    places = [STACK.index(column) for column in columns]

    def shown(stack: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(stack[place] for place in places)

    count = Counter(map(shown, stacks))
    return {stack for stack in stacks if count[shown(stack)] > 1}


def said(found: Sample | None, stated: float) -> str:
    """The factor beside that of the paper."""
    if found is None:
        return "a gradient is 0, so there is no factor."
    return (
        f"from a layer to the one below it the gradient is multiplied by {with_interval(found)}; "
        f"the paper has {stated:.3f} at the start of training."
    )


def plot(rows: list[Row], axes: Any) -> None:
    """The gradient over the layers, a line a stack of a checkpoint."""
    stacks = by_stack(rows)
    like_others = shared(stacks, "placement", "updates", "stack")
    for place, (key, some) in enumerate(stacks.items()):
        means = [
            sum(row["gradient"] for row in at) / len(at) for at in group(some, "layer").values()
        ]
        placement, norm, updates, stack, checkpoint = key
        which = f", {checkpoint or norm}" if key in like_others else ""
        axes.plot(
            range(1, len(means) + 1),
            means,
            **style(place),
            label=f"{placement}, {updates} updates, {stack}{which}",
        )
    axes.set_yscale("log")
    axes.set_xlabel("layer l")
    axes.set_ylabel("gradient of W^2")
    axes.legend(loc="best", fontsize=7)


CLAIM = Claim(
    name="trained-layers",
    title="The gradient of every layer after the warm-up",
    source="Xiong et al. 2020, section 3.3",
    statement=(
        "The paper explains the need for a warm-up by the large gradients near the output of "
        "post-norm at the start of training. Measured here is how the gradients of the layers "
        "compare after the warm-up of a real run.",
    ),
    method=(
        f"Checkpoints of real runs, on the first {BATCHES} batches of their training data, without "
        "dropout. Each placement has one run: the interval is over these batches, and says nothing "
        "about other seeds.",
    ),
    caption="Gradient of each layer's W^2 in trained models, mean over batches.",
    measure_once=measure_once,
    find=find,
    plot=plot,
)
