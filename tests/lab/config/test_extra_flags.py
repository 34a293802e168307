"""A setting is the same run, whether it is given as an override or as a flag after ``--``."""

from __future__ import annotations

import pytest

from fake_runs import spec_of
from norm_lab.engine.stages import run_stages


@pytest.mark.parametrize(
    ("overrides", "flags", "changes"),
    [
        ("optimization.lr=[0.001]", "--lr 0.001", {"optimization.lr": [0.001]}),
        ("optimization.lr=0.001", "--lr=1e-3", {"optimization.lr": [0.001]}),
        ("placement=post", "--norm-placement post", {"model.norm_placement": "post"}),
        ("norm_alpha_fwd=0.95", "--norm-alpha-fwd .95", {"model.norm_alpha_fwd": 0.95}),
        ("optimization.clip_norm=2.0", "--clip-norm 2", {"optimization.clip_norm": 2}),
        ("+task.left_pad_source=false", "--left-pad-source", {"task.left_pad_source": False}),
        ("optimization.max_epoch=3", "--max-epoch 4 --max-epoch 3", {"optimization.max_epoch": 3}),
        ("++common.amp=true", "--amp", {"common.amp": True}),
        ("+optimizer.weight_decay=0.1", "--weight-decay 0.1", {"optimizer.weight_decay": 0.1}),
    ],
)
def test_an_override_and_a_flag_are_the_same_run(overrides, flags, changes):
    run = ("toy", "norm=powernorm")
    by_override = spec_of(*run, *overrides.split())
    by_flag = spec_of(*run, "--", *flags.split())
    assert by_override == by_flag
    assert run_stages(by_override) == run_stages(by_flag)
    assert dict(by_flag.arm.changes) == changes


def test_the_order_of_overrides_and_flags_does_not_matter():
    overrides = ("+optimizer.weight_decay=0.1", "+optimizer.use_old_adam=true")
    flags = ("--weight-decay", "0.1", "--use-old-adam")
    first = run_stages(spec_of("toy", *overrides))
    assert first == run_stages(spec_of("toy", *reversed(overrides)))
    assert first == run_stages(spec_of("toy", "--", *flags))
    assert first == run_stages(spec_of("toy", overrides[1], "--", *flags[:2]))


def test_a_flag_with_the_value_of_the_recipe_changes_nothing():
    run = spec_of("toy")
    flags = ("--max-epoch", run.settings["optimization"]["max_epoch"])
    assert spec_of("toy", "--", *flags) == run
