"""Write a checkpoint whose norms are folded into the linear maps that follow, for decoding.

    norm-plugin fold averaged.pt --output folded.pt

``fairseq-generate --user-dir norm_plugin --path folded.pt`` decodes it without ``--fold-norms``:
its settings are ``none`` where a norm was folded. ``norm_plugin/models/folding.py`` says which
norms can be folded, and why others cannot. The state of the optimizer is dropped; to continue
training, use the original checkpoint.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import (
    FOLDED,
    State,
    check_finite,
    load_checkpoint,
    save_checkpoint,
)
from norm_plugin.checkpoints.parsers import fold_parser
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import check_output
from norm_plugin.io.user_dirs import import_user_dir


def fold_checkpoint(checkpoint: Path, data: Path | None = None) -> tuple[State, list[Any]]:
    """Return the content of a folded checkpoint, and the result at each site.

    Args:
        checkpoint: a checkpoint of a ``norm_transformer``.
        data: the folder with the dictionaries; None: the one of the training.

    Raises:
        CommandError: it is missing, unreadable or of another model, or no norm can be folded.
    """
    from norm_plugin.models.folding import fold_norms

    state = load_checkpoint(checkpoint)
    check_finite(checkpoint, state["model"])
    model, _, _ = build_model(checkpoint, data, state)
    try:
        foldings = fold_norms(model)
    except ValueError as error:
        raise CommandError(f"{checkpoint}: {error}") from error
    folded = [folding for folding in foldings if not folding.reason]
    if not folded:
        reasons = "; ".join(map(str, foldings)) or "it has no norms"
        raise CommandError(f"no norm of {checkpoint} can be folded: {reasons}")
    _write_folded_model(state, model, folded)
    return state, foldings


def _write_folded_model(state: State, model: Any, folded: Sequence[Any]) -> None:
    """Write the folded ``model`` into ``state``: weights and settings; drop the optimizer's."""
    from norm_plugin.models.settle import store_folded

    gone = {path for folding in folded for path in folding.norms}
    new = {path for folding in folded for path in folding.maps}
    weights = model.state_dict()
    state["model"] = {
        name: weights[name].to(value.dtype) if name.rpartition(".")[0] in new else value
        for name, value in state["model"].items()
        if name.rpartition(".")[0] not in gone
    }
    settings = state["cfg"]["model"]
    args = argparse.Namespace(**settings) if isinstance(settings, dict) else settings
    store_folded(args, model.cfg.plan)
    state["cfg"]["model"] = vars(args) if isinstance(settings, dict) else args
    state[FOLDED] = [folding.site.name for folding in folded]
    state.pop("last_optimizer_state", None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and print a line for each site."""
    args = fold_parser().parse_args(argv)
    check_output(args.output)
    import_user_dir(args.user_dir)
    if os.path.realpath(args.output) == os.path.realpath(args.checkpoint):
        raise CommandError(f"--output {args.output} is also the input; choose another name")
    state, foldings = fold_checkpoint(args.checkpoint, args.data)
    save_checkpoint(state, args.output)
    for folding in foldings:
        print(folding)
    print(f"folded {args.checkpoint} into {args.output}")
    return 0
