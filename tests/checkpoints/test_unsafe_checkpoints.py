"""Checkpoints whose settings would run code: every command refuses them before anything runs."""

from __future__ import annotations

import argparse
import ast
import copy
import re
from pathlib import Path
from types import SimpleNamespace

import fairseq
import fairseq_cli.train
import pytest
import torch
from fairseq import checkpoint_utils

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.stored_settings import EVALUATED, UnsafeSettingError, check_settings
from readers import FAIRSEQ, QUICK, average_it, average_last, fold_it, hub, repair_it, result_of_it


@pytest.fixture
def setting(tmp_path, prepared, harmless):
    """What a test needs: ``path`` to save to, the data, and a ``payload`` that leaves a mark."""
    mark = tmp_path / "executed"
    (tmp_path / "run").mkdir()
    return SimpleNamespace(
        state=copy.deepcopy(harmless),
        path=tmp_path / "run" / "checkpoint_last.pt",
        output=tmp_path / "output.pt",
        data=prepared,
        mark=mark,
        payload=f"__import__('pathlib').Path({str(mark)!r}).touch() or (10,)",
    )


# --- the settings


def as_flag(state, payload):
    state["cfg"]["model"].adaptive_softmax_cutoff = payload
    return "model.adaptive_softmax_cutoff"


def as_yaml(state, payload):
    """fairseq-hydra-train stores the keys of ``model`` as a mapping."""
    flags = vars(state["cfg"]["model"])
    kinds = ("_name", "norm_", "encoder_", "decoder_", "share_", "dropout")
    state["cfg"]["model"] = {name: v for name, v in flags.items() if name.startswith(kinds)}
    state["cfg"]["model"]["adaptive_softmax_cutoff"] = payload
    return "model.adaptive_softmax_cutoff"


def as_old_arguments(state, payload):
    """fairseq up to 0.9 stored one Namespace."""
    state["args"] = copy.deepcopy(state["cfg"]["model"])
    state["args"].adaptive_softmax_cutoff = payload
    state["cfg"] = None
    return "adaptive_softmax_cutoff"


def as_interpolation(state, payload):
    state["cfg"]["common"]["wandb_project"] = payload
    state["cfg"]["model"] = {**vars(state["cfg"]["model"])}
    state["cfg"]["model"]["adaptive_softmax_cutoff"] = "${common.wandb_project}"
    return "model.adaptive_softmax_cutoff"


def of_the_optimizer(state, payload):
    state["cfg"]["optimizer"] = {"_name": "adam", "adam_betas": payload}
    return "optimizer.adam_betas"


def of_one_side(state, payload):
    state["cfg"]["model"].decoder_xformers_att_config = payload
    return "model.decoder_xformers_att_config"


SETTINGS = (as_flag, as_yaml, as_old_arguments, as_interpolation, of_the_optimizer, of_one_side)


# Ours read a checkpoint by one function, which fold_it meets every setting by, and fairseq's by one
# of fairseq, which the hub does. All of fairseq's but fairseq-train load models alike.
CASES = [(command, change) for command in (fold_it, hub) for change in SETTINGS]
CASES += [(command, of_the_optimizer) for command in (*QUICK[1:-1], *FAIRSEQ)]


@pytest.mark.parametrize(
    ("command", "change"),
    CASES,
    ids=[f"{command.__name__}-{change.__name__}" for command, change in CASES],
)
def test_it_is_refused(monkeypatch, setting, command, change) -> None:
    key = change(setting.state, setting.payload)
    torch.save(setting.state, setting.path)
    with pytest.raises((CommandError, UnsafeSettingError)) as error:
        command(monkeypatch, setting)
    assert not setting.mark.exists()
    # fairseq brings old arguments into their sections before it hands them on
    assert re.match(
        rf"{setting.path}: its setting (model\.)?{re.escape(key)} is ", str(error.value)
    )
    assert not setting.output.exists()


def test_without_the_check_it_would_run(monkeypatch, setting) -> None:
    as_flag(setting.state, setting.payload)
    torch.save(setting.state, setting.path)
    unguarded = checkpoint_utils.load_checkpoint_to_cpu.__wrapped__
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", unguarded)
    with pytest.raises(Exception, match="no longer supported"):  # the weights do not fit it
        hub(monkeypatch, setting)
    assert setting.mark.exists()


# --- the user dir


@pytest.fixture
def foreign(setting):
    """A checkpoint whose settings have a ``--user-dir``, whose import would leave the mark."""
    folder = setting.path.parent.parent / "foreign_norms"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"open({str(setting.mark)!r}, 'w').close()\n")
    setting.state["cfg"]["common"]["user_dir"] = str(folder)
    setting.state["cfg"]["model"].user_dir = str(folder)
    torch.save(setting.state, setting.path)
    return setting


NEED_THE_NORMS = (fold_it, average_last, result_of_it)


@pytest.mark.parametrize("command", NEED_THE_NORMS, ids=lambda command: command.__name__)
def test_no_user_dir_is_taken_from_a_file(monkeypatch, foreign, command) -> None:
    with pytest.raises(CommandError, match="common.user_dir.*add --user-dir .*foreign_norms"):
        command(monkeypatch, foreign)
    assert not foreign.mark.exists()


@pytest.mark.parametrize("command", [average_it, repair_it, hub], ids=lambda c: c.__name__)
def test_a_user_dir_that_is_not_needed_is_not_imported(monkeypatch, foreign, command) -> None:
    command(monkeypatch, foreign)
    assert not foreign.mark.exists()


# --- what counts as a literal


def refused(**settings) -> bool:
    try:
        check_settings({"model": argparse.Namespace(**settings)}, "file")
    except UnsafeSettingError:
        return True
    return False


@pytest.mark.parametrize(
    "value",
    [
        "(0.9, 0.98)",
        "[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)] * 2",
        "10000,50000",
        " True",
        "{'name': 'scaled_dot_product', 'dropout': -0.5}",
        "None",
        None,
        True,
        [10, 20],
        3,
    ],
)
def test_literals_are_taken(value) -> None:
    assert not refused(adam_betas=value)


@pytest.mark.parametrize(
    "value",
    [
        "f()",
        "[f() for x in (1,)]",
        "(1).real",
        "[1] + f()",
        "[f()] * 2",
        "2 * 3",
        "9 ** 9 ** 9",
        "(lambda: 1)",
        "f'{f()}'",
        "name",
        "1; f()",
        "",
        "\0",
        "(" * 5000 + ")" * 5000,
        "${other}",
        b"1",
        {1, 2},
    ],
)
def test_anything_else_is_not(value) -> None:
    assert refused(adam_betas=value)
    assert not refused(save_dir=value)


def test_settings_in_settings_are_seen() -> None:
    around: dict = {"list": [{"decoder": argparse.Namespace(adaptive_softmax_cutoff="f()")}]}
    around["itself"] = around
    with pytest.raises(
        UnsafeSettingError, match=r"list\.0\.decoder\.adaptive_softmax_cutoff is 'f"
    ):
        check_settings(around, "file")
    for _ in range(5000):  # deeper than Python's stack
        around = {"deeper": around}
    with pytest.raises(UnsafeSettingError):
        check_settings(around, "file")


EVALUATORS = {"eval", "eval_str_list", "eval_str_dict", "eval_bool"}


def evaluates(node) -> bool:
    """Whether a piece of source is the name of what evaluates text."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name in EVALUATORS and (name != "eval" or isinstance(node, ast.Name))


def evaluated_by_fairseq() -> tuple[set[str], set[str], set[str]]:
    """What fairseq's source hands to eval: names of attributes, of flags, and of anything else."""
    attributes, flags, others = set(), set(), set()
    folders = [Path(module.__file__).parent for module in (fairseq, fairseq_cli.train)]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "eval" not in text or "examples" in path.parts:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            value = node.args[0]
            types = [each.value for each in node.keywords if each.arg == "type"]
            if evaluates(node.func):
                found = attributes if isinstance(value, ast.Attribute) else others
                found.add(value.attr if isinstance(value, ast.Attribute) else ast.unparse(value))
            elif any(evaluates(part) for each in types for part in ast.walk(each)):
                flags |= {each.value.removeprefix("--").replace("-", "_") for each in node.args}
    return attributes, flags, others


def test_every_setting_that_fairseq_evaluates_is_known() -> None:
    attributes, flags, others = evaluated_by_fairseq()
    assert {"adaptive_softmax_cutoff", "model_overrides"} <= attributes
    assert attributes <= EVALUATED
    assert "decoder_glu" in flags and flags <= EVALUATED
    # x, uf: values of flags as they are typed; line.strip(): a line of data, not a setting
    known = {"x", "uf", "line.strip()", "getattr(override_args, 'model_overrides', '{}')"}
    assert others - EVALUATED <= known


def test_a_program_that_a_setting_names_is_refused() -> None:
    assert refused(post_save_script="touch executed")
    assert not refused(post_save_script=None)
