"""A run by a new name of a setting is the run by its old name, with which it is compared."""

from __future__ import annotations

import pytest

from fake_runs import spec_of
from norm_lab.config.configuration import main
from norm_lab.config.renamed import stored_overrides, use_stored_keys
from norm_plugin.io.command_line import CommandError

RUN = ("tinyshakespeare", "preset=short", "norm=batchnorm")
OLD, NEW = "norm_stat_tokens", "norm_ghost_batch_tokens"


def test_an_override_by_either_name_is_the_same_run(tmp_path):
    old, new = (spec_of(*RUN, f"{name}=64", "--work", tmp_path) for name in (OLD, NEW))
    assert old == new and old.label == "batchnorm-stat-tokens-64"
    assert new.arm.changes == {"model.norm_stat_tokens": 64}
    with pytest.raises(CommandError, match=f"model.{OLD} 64 and model.{NEW} 32 are one setting"):
        spec_of(*RUN, f"{OLD}=64", f"{NEW}=32", "--work", tmp_path)


def test_a_flag_by_either_name_is_the_same_run(tmp_path):
    flags = [f"--{name.replace('_', '-')}" for name in (OLD, NEW)]
    old, new = (spec_of(*RUN, "--work", tmp_path, "--", flag, "64") for flag in flags)
    assert old == new
    assert old == spec_of(*RUN, "--work", tmp_path, "--", f"{flags[1]}=64")
    with pytest.raises(CommandError, match="64 and .* 32 are one setting"):
        spec_of(*RUN, "--work", tmp_path, "--", flags[0], "32", flags[1], "64")


def test_a_file_may_have_either_name():
    config = {"model": {NEW: 32, OLD: None}}
    use_stored_keys(config)
    assert config == {"model": {OLD: 32}}
    with pytest.raises(CommandError, match=f"64 and --{OLD.replace('_', '-')} 32 are one setting"):
        use_stored_keys({"model": {NEW: 64, OLD: 32}})


@pytest.mark.parametrize("name", [OLD, NEW])
def test_an_override_replaces_what_a_file_gives_by_either_name(name):
    expected = [f"++model.{OLD}=64", f"++model.{NEW}=null"]
    assert stored_overrides(["a.b=1", f"+model.{name}=64"]) == ["a.b=1", *expected]


def test_the_flags_of_fairseq_are_printed_by_their_new_names(capsys):
    main(["tinyshakespeare", "norm=batchnorm", f"model.{OLD}=64"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("--norm-ghost-batch-tokens") + 1] == "64"
