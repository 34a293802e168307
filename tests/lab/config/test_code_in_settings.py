"""Settings from files and overrides are data: a run that would evaluate code is not composed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fake_runs import composed, spec_of
from norm_lab.config import configuration
from norm_lab.config.checks import check_hyperparameters
from norm_lab.paths import CONFIGS
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.stored_settings import EVALUATED, PROGRAMS

ONLY = "but files and overrides set hyperparameters only, to numbers, words or literals without"
BETAS = f"optimizer.adam_betas is .__import__.*{ONLY}"
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
    return composed(*argv, "--dry-run", "--verbose")


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
    with pytest.raises(CommandError, match=ONLY):
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


@pytest.mark.parametrize(
    ("group", "settings", "message"),
    [
        ("optimizer", {"adam_beta": "{}"}, "optimizer.adam_beta is .__import__"),
        ("optimizer", {"adam-betas={}": True}, "optimizer.adam-betas=__import__.* is 'True'"),
        ("optimizer", {"adam_betas": "--1 and {}"}, "adam_betas is .--1 and __import__"),
        ("optimizer", {"x": "{}", "adam_betas": "${{optimizer.x}}"}, BETAS),
        ("common", {"no_progress_bar": "--adam-betas={}"}, "no_progress_bar is .--adam-betas"),
        # what is imported is the user's choice
        ("common", {"user_dir": "elsewhere"}, "user_dir is 'elsewhere'.* give --user-dir DIR"),
        ("model", {"user_dir": "elsewhere"}, "user_dir is 'elsewhere'"),
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
    with pytest.raises(CommandError, match="adam-betas is .__import__.*would run as Python code"):
        spec_of("toy", "--", "--adam-betas", code)


@pytest.mark.parametrize("group", ["model", "task", "optimizer", "common_eval"])
def test_each_setting_that_fairseq_evaluates(group):
    for name in EVALUATED | PROGRAMS:
        with pytest.raises(CommandError, match=f"{group}.{name} is 'f.x.'"):
            check_hyperparameters({group: {name: "f(x)"}}, None)


@pytest.mark.parametrize(
    "setting",
    [
        "common.log_file=/etc/profile",
        "common.log_file=LICENSE",
        "common.aim_run_hash=x",
        "common.tensorboard_logdir=x",
        "common.wandb_project=x",
        "common_eval.results_path=x",
        "common_eval.path=x",
        "checkpoint.restore_file=x",
        "checkpoint.save_dir=/tmp/x",
        "distributed_training.distributed_init_method=x",
        "distributed_training.distributed_world_size=2",
        "dataset.train_subset=test",
        "dataset.gen_subset=valid",
        "generation.gen_subset=valid",
        "generation.path=x",
        "generation.score_reference=true",
        "generation.lm_path=x",
        "model.log_file=x",
        "model.norm_record_file=LICENSE",
        "model.decoder_embed_path=/tmp/x",
        "task.post_save_script=reboot",
        "anything.log_file=x",
        "bpe._name=gpt2",
    ],
)
def test_a_setting_names_no_file_no_program_no_server_and_no_other_test_set(setting, tmp_path):
    """Neither in an override nor in a study, whose runs begin with nothing."""
    key = setting.partition("=")[0]
    override = setting if key == "checkpoint.save_dir" else f"++{setting}"
    path = tmp_path / "mine.yaml"
    path.write_text(f"experiment: toy\noverrides: ['{override}']\n")
    for argv in (["toy", override], [str(path)]):
        with pytest.raises(CommandError, match=f"{key} is .*{ONLY}|give --work DIR instead"):
            dry_runs(*argv)


def test_the_users_own_choice_is_imported():
    check_hyperparameters({"common": {"user_dir": "norm_plugin"}}, None)
    check_hyperparameters({"common": {"user_dir": "../mine"}}, Path("../mine"))


@pytest.mark.parametrize(
    "value", [0, -1.5, True, None, [1, 2], "gelu", "-1", "(0.9, 0.98)", "1,2", "a,b"]
)
def test_numbers_words_and_literals_are_hyperparameters(value):
    check_hyperparameters({"model": {"mine": value}}, None)


@pytest.mark.parametrize(
    "setting", ["hydra.searchpath=[pkg://this]", "+hydra.searchpath=[pkg://this]", "hydra.x=1"]
)
def test_a_setting_of_hydra_is_refused(setting, tmp_path, monkeypatch):
    where = "changes hydra itself, which could run code"
    with pytest.raises(CommandError, match=where):
        dry_runs("toy", setting)
    study = tmp_path / "study.yaml"
    study.write_text(f"experiment: toy\noverrides: ['{setting}']\n")
    with pytest.raises(CommandError, match=where):
        dry_runs(str(study))
    study.write_text(f"experiment: toy\narms: [['{setting}']]\n")
    with pytest.raises(CommandError, match=where):
        dry_runs(str(study))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hydra:\n", "hydra:\n  searchpath: [pkg://this]\n"),
        ("defaults:\n", "defaults:\n  - override hydra/job_logging: none\n"),
    ],
)
def test_an_experiment_of_the_users_own_does_not_change_hydra(old, new, tmp_path):
    text = (CONFIGS / "toy.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1))
    assert old in text
    with pytest.raises(CommandError, match="changes hydra itself"):
        dry_runs(str(path))


def test_a_corpus_that_is_no_name_is_refused_in_one_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text((CONFIGS / "toy.yaml").read_text().replace("corpus: toy", "corpus: [toy]"))
    with pytest.raises(CommandError, match="Cannot convert .* to string"):
        dry_runs(str(path))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+optimizer.lr=[0.1]", "optimizer.lr and optimization.lr are the same flag, --lr"),
        ("+dataset.lr=0.5", "dataset.lr are the same flag, --lr"),
        ("+dataset.seed=5", "the same flag, --seed"),
        ("+task.max_tokens=5", "the same flag, --max-tokens"),
        ("+optimizer.update_freq=[4]", "optimizer has no setting update_freq; give optimization."),
        ("+task.no_epoch_checkpoints=true", "task has no setting .* give checkpoint.no_epoch_ch"),
        ("task.source_lang=xx", "task.source_lang is xx, but the corpus is prepared .* for en"),
        ("task.target_lang=en", "task.target_lang is en, but the corpus is prepared .* for xx"),
        ("optimization.clip_norm=inf", "optimization.clip_norm is not a finite number"),
        ("model.dropout=nan", "model.dropout is not a finite number"),
        ("optimization.lr=[.inf]", "optimization.lr is"),
        ("+seed_of_mine=5", "seed_of_mine is '5', but a setting is in a group of fairseq"),
        ("+word=value", "word is 'value', but a setting is in a group"),
        ("model.norm_eps=-1", "--norm-eps: eps is -1.0; it must be 0 or more"),
    ],
)
def test_a_setting_that_would_not_be_what_it_says_is_refused(override, message):
    with pytest.raises(CommandError, match=message):
        dry_runs("toy", override)


def test_two_names_of_a_setting_are_refused():
    with pytest.raises(CommandError, match="--max-sentences and --batch-size are the same setting"):
        dry_runs("toy", "+dataset.batch_size=8", "+model.max_sentences=4")
