"""Names of runs are readable, and different where runs are."""

from __future__ import annotations

import re

import pytest

from norm_lab.config.configuration import differences
from norm_lab.config.labels import MAX_LABEL_LENGTH, run_label
from norm_lab.metrics.flags import flag_settings


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({}, "powernorm"),
        ({"model.norm_variant": "released"}, "powernorm-released"),
        ({"model.norm_layer_scale_groups": 0}, "powernorm-layer-scale-groups-0"),
        ({"model.norm_placement": "post", "model.dropout": 0.2}, "powernorm-post-dropout-0.2"),
        ({"optimization.lr": [0.001]}, "powernorm-lr-0.001"),
        ({"lr_scheduler._name": "fixed", "model.dropout": 0}, "powernorm-fixed-dropout-0"),
        ({"model.share_all_embeddings": False}, "powernorm-no-share-all-embeddings"),
        ({"fp16": True}, "powernorm-fp16"),
        ({"model.norm_alpha_fwd": None}, "powernorm-default-alpha-fwd"),
    ],
)
def test_names_are_readable(settings, label):
    assert run_label("powernorm", settings) == label


def test_flags_are_read_as_settings():
    flags = ["--fp16", "--a", "1", "--b=x", "--c", "1", "2", "--a", "3", "--d", "-1"]
    assert flag_settings(flags) == {
        "fp16": True,
        "a": "3",  # the last one wins
        "b": "x",
        "c": ["1", "2"],
        "d": "-1",
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["--a", "b c"], ["--a", "b", "c"]),
        (["--a", "b/c"], ["--a", "b-c"]),
        (["--a", "x" * 200 + "1"], ["--a", "x" * 200 + "2"]),
    ],
)
def test_other_settings_have_other_names(first, second):
    labels = [run_label("rmsnorm", flag_settings(flags)) for flags in (first, second)]
    assert labels[0] != labels[1]
    for label in labels:
        assert re.fullmatch(r"[\w.-]+", label) and len(label) <= MAX_LABEL_LENGTH + 7


def test_the_order_of_flags_does_not_matter():
    first, second = ["--a", "1", "--b", "2"], ["--b", "2", "--a", "1"]
    assert run_label("rmsnorm", flag_settings(first)) == run_label("rmsnorm", flag_settings(second))


def test_a_setting_that_was_deleted_is_a_difference():
    base = {"optimization": {"clip_norm": 1.0, "sentence_avg": None, "max_epoch": 12}}
    config = {"optimization": {"max_epoch": 12}}
    differing = differences(config, base)
    assert differing == {"optimization.clip_norm": None}
    assert run_label("rmsnorm", differing) == "rmsnorm-default-clip-norm"


def test_another_component_has_other_settings():
    base = {"lr_scheduler": {"_name": "inverse_sqrt", "warmup_init_lr": 1e-7}}
    config = {"lr_scheduler": {"_name": "fixed"}}
    assert differences(config, base) == {"lr_scheduler._name": "fixed"}


def test_the_recorder_gives_a_run_no_other_name():
    config = {"model": {"norm_record": 25, "norm_record_sites": "encoder", "norm_eps": 1e-3}}
    base = {"model": {"norm_record": 0, "norm_record_sites": None, "norm_eps": None}}
    assert differences(config, base) == {"model.norm_eps": 1e-3}
