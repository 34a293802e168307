"""--pretrained: the run of a model that is fine-tuned."""

from __future__ import annotations

import pytest

from fake_runs import spec_of
from norm_lab.engine.stages import data_command, run_stages
from norm_plugin.io.command_line import CommandError


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "dict.txt").write_text("word 1\n")
    path = tmp_path / "checkpoint_best.pt"
    path.write_bytes(b"weights")
    return path


def after(command, flag):
    return command[command.index(flag) + 1]


def test_it_reaches_the_data_and_the_training(checkpoint):
    plan = spec_of("rt", "--pretrained", checkpoint)
    assert plan.preparation.options["dictionary"] == str(checkpoint.with_name("dict.txt"))
    train = run_stages(plan)[0]
    assert train.name == "train"
    assert after(train.command, "--finetune-from-model") == str(checkpoint)
    plain = spec_of("rt")
    for command in (data_command(plain), *(stage.command for stage in run_stages(plain))):
        assert not {"--dictionary", "--finetune-from-model"} & set(command)
    assert plan.data != plain.data and plan.result != plain.result


def test_the_run_is_named_after_the_content(checkpoint, tmp_path):
    """So a model may be moved, and another one in its place is not taken for it."""
    plan = spec_of("mrpc", "--pretrained", checkpoint)
    elsewhere = tmp_path / "moved"
    elsewhere.mkdir()
    for name in ("dict.txt", checkpoint.name):
        (elsewhere / name).write_bytes((tmp_path / name).read_bytes())
    moved = spec_of("mrpc", "--pretrained", elsewhere / checkpoint.name)
    assert (moved.data, moved.folder) == (plan.data, plan.folder)
    assert run_stages(moved)[0].key == run_stages(plan)[0].key
    other = tmp_path / "other.pt"
    other.write_bytes(b"others")
    assert spec_of("mrpc", "--pretrained", other).folder != plan.folder
    assert spec_of("mrpc", "--pretrained", other).data == plan.data
    assert list(plan.arm.changes) == ["pretrained"]


def test_a_recipe_that_names_no_placement_takes_one():
    plan = spec_of("rt", "placement=post", "norm_init=kaiming")
    assert plan.settings["model"]["norm_placement"] == "post"
    assert plan.label == "layernorm-kaiming-post"


def test_what_is_refused(checkpoint, tmp_path):
    with pytest.raises(CommandError, match="for classification, but toy is another task; drop it"):
        spec_of("toy", "--pretrained", checkpoint)
    with pytest.raises(CommandError, match=r"needs .*gone\.pt, which does not exist"):
        spec_of("rt", "--pretrained", tmp_path / "gone.pt")
    checkpoint.with_name("dict.txt").unlink()
    with pytest.raises(CommandError, match=r"needs .*dict\.txt, .* copy the dict\.txt of its data"):
        spec_of("rt", "--pretrained", checkpoint)
