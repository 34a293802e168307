"""Each old name of a flag is the same setting as its new one, wherever settings come from."""

from __future__ import annotations

import argparse

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from norm_plugin.models import NormTransformerModel
from norm_plugin.models.flags import RENAMED_KEYS, flag_of

SETTINGS = {
    "norm_head_width": ({"norm_type_query": "layernorm"}, "full", "head"),
    "norm_stat_tokens": ({"norm_type": "batchnorm"}, "9", "8"),
    "norm_allow_change": ({}, "on", "off"),
}
"""Settings of the model with which each has a meaning, a value, and another one."""


def as_flags(settings):
    return [f for key, value in settings.items() for f in (f"--{key.replace('_', '-')}", value)]


def test_every_renamed_setting_is_tested():
    assert {*SETTINGS} == {*RENAMED_KEYS}


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_both_names_make_the_same_plan_and_store_the_same(old, new, build, build_yaml):
    others, value, _ = SETTINGS[old]
    for made in (lambda given: build(*as_flags(given)), lambda given: build_yaml(**given)):
        stock, by_old, by_new, by_both = (
            made({**others, **given})
            for given in ({}, {old: value}, {new: value}, {old: value, new: value})
        )
        assert by_old.cfg.plan == by_new.cfg.plan == by_both.cfg.plan != stock.cfg.plan
        for model in (by_old, by_new):
            args = model.args if isinstance(model.args, argparse.Namespace) else None
            stored = vars(args) if args else OmegaConf.to_container(model.args)
            assert str(stored[old]) == value and new not in stored


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_two_values_by_the_two_names_are_an_error(old, new, build, build_yaml):
    others, value, another = SETTINGS[old]
    given = {**others, old: another, new: value}
    flag = f"--{old.replace('_', '-')}"
    message = f"{flag_of(old)} {value} and {flag} {another} are one setting"
    with pytest.raises(ValueError, match=message):
        build(*as_flags(given))
    with pytest.raises(ValueError, match=message):
        build_yaml(**given)


def test_a_boolean_of_yaml_and_its_word_are_one_value(build_yaml):
    assert build_yaml(norm_allow_change=True, norm_allow_mismatch="on").cfg.plan.allow_mismatch


def test_the_help_has_the_new_names_alone():
    parser = argparse.ArgumentParser()
    NormTransformerModel.add_args(parser)
    text = parser.format_help()
    for old, new in RENAMED_KEYS.items():
        assert f"--{new.replace('_', '-')} " in text and f"--{old.replace('_', '-')}" not in text


@pytest.mark.parametrize("name", ["norm_head_width", "norm_qkv_scope"])
def test_an_old_checkpoint_is_overridden_by_either_name(name, tmp_path):
    path = str(tmp_path / "checkpoint.pt")
    model = {"_name": "norm_transformer", "norm_type": "layernorm", "norm_head_width": "head"}
    history = [{"num_updates": 1, "best_loss": 1.0}]
    state = {"cfg": {"model": model}, "args": None, "model": {}, "optimizer_history": history}
    torch.save({**state, "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}}}, path)
    read = checkpoint_utils.load_checkpoint_to_cpu(path, {name: "full"})
    assert read["cfg"]["model"]["norm_head_width"] == "full"
    read = checkpoint_utils.load_checkpoint_to_cpu(path)
    assert read["cfg"]["model"]["norm_head_width"] == "head"
