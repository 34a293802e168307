"""``--encoder-layers-to-keep``: a pruned model is stored unchanged, and loads again."""

from __future__ import annotations

import pytest
import torch
from fairseq import checkpoint_utils

from in_process import train_here

SCALED = ("--norm-placement", "scaled-pre")  # its constants say where a layer was trained
THREE = ("--encoder-layers", 3, "--decoder-layers", 2, *SCALED)
ONCE = ("--max-update", 1, "--disable-validation", "--no-epoch-checkpoints")
ANEW = ("--reset-optimizer", "--reset-meters", "--reset-dataloader")


def loaded(folder):
    """The model as every command that uses it builds it, and its stored settings."""
    path = str(folder / "checkpoint_last.pt")
    (model,), cfg, _ = checkpoint_utils.load_model_ensemble_and_task([path])
    return model.eval(), cfg.model


@pytest.mark.parametrize("how", ["--restore-file", "--finetune-from-model"])
def test_a_pruned_model_is_trained_resumed_and_loaded(how, toy, tmp_path, monkeypatch):
    whole = train_here(monkeypatch, toy, tmp_path / "whole", *THREE, *ONCE).get_model()
    keep = (*THREE, "--encoder-layers-to-keep", "0,2", "--lr", 1e-30)
    start = (how, tmp_path / "whole" / "checkpoint_last.pt", *(ANEW if "restore" in how else ()))
    pruned = train_here(monkeypatch, toy, tmp_path / "kept", *keep, *ONCE, *start).get_model()
    for kept, trained in enumerate((0, 2)):
        before, now = (model.encoder.layers[n] for model, n in ((whole, trained), (pruned, kept)))
        assert torch.equal(before.fc1.weight, now.fc1.weight)
    resumed = train_here(monkeypatch, toy, tmp_path / "kept", *keep, *ONCE[2:], "--max-update", 2)
    assert resumed.get_num_updates() == 2
    model, settings = loaded(tmp_path / "kept")
    assert (settings.encoder_layers, settings.encoder_layers_to_keep) == (3, "0,2")
    places = [layer.placement.place.index for layer in model.encoder.layers]
    assert places == [layer.placement.place.index for layer in pruned.encoder.layers] == [1, 3]
    for name, value in resumed.get_model().state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("given", "layers"), [("0,2", [1, 3]), ([2, 0], [1, 3]), (1, [2]), (0, [1]), (None, [1, 2, 3])]
)
def test_the_layers_may_be_a_word_a_list_or_a_number(build_yaml, given, layers):
    model = build_yaml(encoder_layers=3, encoder_layers_to_keep=given)
    assert [layer.placement.place.index for layer in model.encoder.layers] == layers
