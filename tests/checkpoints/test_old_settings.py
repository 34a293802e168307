"""A checkpoint with older names of settings is read with the names of today."""

from __future__ import annotations

import argparse

import pytest
import torch
from fairseq import checkpoint_utils

from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.declarations.flags import QKV_SCOPE
from norm_plugin.models.safe_loading import OLD_KEYS

OLD = {"norm_head_width": "full", "norm_stat_tokens": 8, "norm_allow_change": "on"}
FORMS = {
    "flags": lambda model: {"cfg": {"model": argparse.Namespace(**model)}, "args": None},
    "yaml": lambda model: {"cfg": {"model": model}, "args": None},
    "args": lambda model: {
        "cfg": None,
        "args": argparse.Namespace(**model, arch="norm_transformer"),
    },
}


def settings_of(state) -> dict:
    model = state["cfg"]["model"] if state.get("cfg") else state["args"]
    return vars(model) if isinstance(model, argparse.Namespace) else model


@pytest.mark.parametrize("form", FORMS)
def test_old_names_are_renamed(tmp_path, form) -> None:
    path = tmp_path / "checkpoint.pt"
    model = {"_name": "norm_transformer", "norm_fused_dropout": "on", **OLD}
    state = {"model": {}, "optimizer_history": [{"num_updates": 1, "best_loss": 1.0}]}
    state["extra_state"] = {"epoch": 1, "train_iterator": {"epoch": 1}}
    torch.save({**state, **FORMS[form](model)}, path)
    fairseq_reads = checkpoint_utils.load_checkpoint_to_cpu
    for read in (load_checkpoint(path), fairseq_reads(str(path))):
        found = settings_of(read)
        assert {found[OLD_KEYS[old]] for old in OLD} == {*OLD.values()}
        assert not OLD_KEYS.keys() & {*found}
    overridden = settings_of(fairseq_reads(str(path), {QKV_SCOPE: "head"}))
    assert overridden[QKV_SCOPE] == "head"
