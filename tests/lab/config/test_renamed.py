"""A run by a new name of a setting is the run by its old name, with which it is compared."""

from __future__ import annotations

import pytest

from fake_runs import spec_of
from norm_plugin.io.command_line import CommandError

RUN = ("tinyshakespeare", "preset=short", "norm=batchnorm")
OLD, NEW = "norm_stat_tokens", "norm_ghost_batch_tokens"


def test_an_override_by_either_name_is_the_same_run(tmp_path):
    old, new = (spec_of(*RUN, f"{name}=64", "--work", tmp_path) for name in (OLD, NEW))
    assert old == new and old.label == "batchnorm-stat-tokens-64"
    assert new.arm.changes == {"model.norm_stat_tokens": 64}


def test_a_flag_by_either_name_is_the_same_run(tmp_path):
    flags = [f"--{name.replace('_', '-')}" for name in (OLD, NEW)]
    old, new = (spec_of(*RUN, "--work", tmp_path, "--", flag, "64") for flag in flags)
    assert old == new
    assert old == spec_of(*RUN, "--work", tmp_path, "--", f"{flags[1]}=64")
    with pytest.raises(CommandError, match="64 and .* 32 are one setting"):
        spec_of(*RUN, "--work", tmp_path, "--", flags[0], "32", flags[1], "64")
