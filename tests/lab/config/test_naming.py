"""Names of runs are readable, and different where runs are."""

from __future__ import annotations

import re

import pytest

from norm_lab.config.configuration import differences, in_one_form
from norm_lab.run.record import MAX_LENGTH, Arm


def name_of(changes):
    return Arm("powernorm", "pre", changes).file_name()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "powernorm"),
        ({"model.norm_variant": "released"}, "powernorm-released"),
        ({"model.norm_layer_scale_groups": 0}, "powernorm-layer-scale-groups-0"),
        ({"model.norm_placement": "post", "model.dropout": 0.2}, "powernorm-post-dropout-0.2"),
        ({"optimization.lr": [0.001]}, "powernorm-lr-0.001"),
        ({"lr_scheduler._name": "fixed", "model.dropout": 0}, "powernorm-fixed-dropout-0"),
        ({"model.share_all_embeddings": False}, "powernorm-no-share-all-embeddings"),
        ({"common.fp16": True}, "powernorm-fp16"),
        ({"model.norm_alpha_fwd": None}, "powernorm-default-alpha-fwd"),
    ],
)
def test_names_are_readable(changes, name):
    assert name_of(changes) == name


def test_a_name_may_omit_changes():
    arm = Arm("powernorm", "post", {"model.norm_placement": "post", "model.dropout": 0.2})
    assert arm.file_name(without=["model.norm_placement", "a.b"]) == "powernorm-dropout-0.2"


@pytest.mark.parametrize(
    ("first", "second"), [("b c", ["b", "c"]), ("b/c", "b-c"), ("x" * 200 + "1", "x" * 200 + "2")]
)
def test_other_settings_have_other_names(first, second):
    names = [name_of({"model.a": value}) for value in (first, second)]
    assert names[0] != names[1]
    for name in names:
        assert re.fullmatch(r"[\w.-]+", name) and len(name) <= MAX_LENGTH + 7


def test_the_order_of_settings_does_not_matter():
    assert name_of({"model.a": 1, "model.b": 2}) == name_of({"model.b": 2, "model.a": 1})


def test_equal_settings_have_one_form():
    base = {"optimization": {"lr": [0.1], "clip_norm": 1, "max_epoch": 2}}
    for lr, clip_norm, max_epoch in ((0.2, 1.0, 3.0), ([0.2], 1, 3)):
        config = {"optimization": {"lr": lr, "clip_norm": clip_norm, "max_epoch": max_epoch}}
        expected = {"optimization": {"lr": [0.2], "clip_norm": 1, "max_epoch": 3}}
        assert repr(in_one_form(config, base)) == repr(expected)


def test_a_setting_that_was_deleted_is_a_difference():
    base = {"optimization": {"clip_norm": 1.0, "sentence_avg": None, "max_epoch": 12}}
    config = {"optimization": {"max_epoch": 12}}
    differing = differences(config, base)
    assert differing == {"optimization.clip_norm": None}
    assert name_of(differing) == "powernorm-default-clip-norm"


def test_another_component_has_other_settings():
    base = {"lr_scheduler": {"_name": "inverse_sqrt", "warmup_init_lr": 1e-7}}
    config = {"lr_scheduler": {"_name": "fixed"}}
    assert differences(config, base) == {"lr_scheduler._name": "fixed"}


def test_the_recorder_gives_a_run_no_other_name():
    config = {"model": {"norm_record": 25, "norm_record_sites": "encoder", "norm_eps": 1e-3}}
    base = {"model": {"norm_record": 0, "norm_record_sites": None, "norm_eps": None}}
    assert differences(config, base) == {"model.norm_eps": 1e-3}
