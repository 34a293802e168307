"""Settings from files and overrides are data: a run that would evaluate code is not composed."""

from __future__ import annotations

import json

import pytest
import yaml

from fake_runs import composed, spec_of
from norm_lab.config import configuration
from norm_lab.config.compose import compose_runs
from norm_lab.config.request import Request
from norm_lab.paths import CONFIGS
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.stored_settings import EVALUATED, PROGRAMS, UnsafeSettingError, check_flags

BETAS = "--adam-betas is .__import__.*which fairseq would run as Python code"
LIGHT = "model._name=lightconv_iwslt_de_en"


@pytest.fixture
def code(tmp_path):
    """An expression that leaves the file ``executed``."""
    return f"__import__('pathlib').Path({str(tmp_path / 'executed')!r}).touch()"


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path):
    yield
    assert not (tmp_path / "executed").exists()


def dry_runs(*argv):
    """The runs of a command line of ``sweep``."""
    return composed(*argv, "--dry-run").runs


def override(key, code):
    return f'{key}="{code}"'


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("optimizer.adam_betas", ()),
        ("+optimizer.adam_bet", ()),  # argparse completes it
        ("+model.adaptive_softmax_cutoff", ()),
        ("+model.decoder_xformers_att_config", ()),
        ("+model.decoder_glu", (LIGHT,)),  # the type of the flag evaluates it
        ("+model.decoder_kernel_size_list", (LIGHT,)),
        ("+eval_lm.model_overrides", ()),
        ("+task.post_save_script", ()),
    ],
)
def test_an_override(key, more, code):
    experiment = "tinyshakespeare" if key.startswith("+eval_lm") else "toy"
    with pytest.raises(CommandError, match="which fairseq would run as Python code or as a prog"):
        dry_runs(experiment, override(key, code), *more)


@pytest.mark.parametrize(
    "text",
    [
        "overrides: [{}]",
        "arms: [[norm=layernorm], [{}]]",
        "overrides: [{}]\n"
        "tune: {{grid: {{optimization.lr: [0.1, 0.2]}}, seeds: [9], bound: [0.01, 1]}}",
    ],
)
def test_a_study(text, tmp_path, code):
    path = tmp_path / "mine.yaml"
    quoted = json.dumps(override("optimizer.adam_betas", code))
    path.write_text("experiment: toy\n" + text.format(quoted))
    with pytest.raises(CommandError, match=BETAS):
        dry_runs(str(path))


def test_the_grid_of_a_tuning(code):
    trial = ("seed=9", override("optimizer.adam_betas", code))
    request = Request("toy", runs=(trial,), grid=True, dry_run=True)
    with pytest.raises(CommandError, match=BETAS):
        compose_runs(request)


@pytest.mark.parametrize(
    ("group", "settings", "message"),
    [
        ("optimizer", {"adam_beta": "{}"}, "--adam-beta is .__import__"),
        ("optimizer", {"adam-betas={}": True}, "--adam-betas is .--import--"),
        ("optimizer", {"adam_betas": "--1 and {}"}, "--adam-betas is .--1 and __import__"),
        ("optimizer", {"x": "{}", "adam_betas": "${{optimizer.x}}"}, BETAS),
        ("common", {"no_progress_bar": "--adam-betas={}"}, BETAS),  # a flag in place of a value
        # what is imported is the user's choice
        ("common", {"user_dir": "elsewhere"}, "--user-dir is 'elsewhere', and importing it would"),
        ("model", {"user_di": "elsewhere"}, "--user-di is 'elsewhere', and importing it would"),
    ],
)
def test_the_yaml_file_of_an_experiment(group, settings, message, tmp_path, code):
    content = yaml.safe_load((CONFIGS / "toy.yaml").read_text())
    for key, value in settings.items():
        content[group][key.format(code)] = value.format(code) if isinstance(value, str) else value
    path = tmp_path / "mine.yaml"
    path.write_text("# @package _global_\n" + yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(CommandError, match=message):
        spec_of(str(path))


def test_the_flags_of_a_configuration(code):
    with pytest.raises(CommandError, match=BETAS):
        configuration.main(["toy", override("optimizer.adam_betas", code)])


def test_flags_after_two_dashes(code):
    with pytest.raises(CommandError, match=BETAS):
        spec_of("toy", "--", "--adam-betas", code)


@pytest.mark.parametrize("name", sorted(EVALUATED | PROGRAMS))
def test_each_flag_that_fairseq_evaluates(name):
    flag = "--" + name.replace("_", "-")
    for flags in ([flag, "f()"], [f"{flag}=f()"], [flag[:-1], "f()"], ["--x", flag, "-1 or f()"]):
        with pytest.raises(UnsafeSettingError):
            check_flags(flags, ())
    check_flags([flag, "None", "--lr", "f()", "DATA", "f()", flag, "--cpu", flag], ())


def test_the_users_own_choice_is_imported():
    check_flags(["--user-dir", "mine", "--user-dir=norm_plugin"], ("norm_plugin", "mine"))
    check_flags(["--adam-betas", "(0.9, 0.98)", "--wer-args", "('a', None)"], ())
