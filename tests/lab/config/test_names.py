"""Names on a command line are refused at once, with the nearest known one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from fairseq.dataclass.configs import FairseqConfig

from norm_lab.config import configuration, experiments
from norm_lab.config.names import check_is_study, check_names
from norm_lab.config.options import Request, overrides_by_key
from norm_lab.paths import CONFIGS
from norm_lab.run.flags import keys_of_groups
from norm_plugin.io.command_line import CommandError, UsageError

WRONG = [
    ("toyy", "", "no experiment or study toyy; did you mean toy?"),
    ("encoder_norm", "", "no experiment or study encoder_norm; did you mean encoder_norms?"),
    ("../nosuch.yaml", "", "the file ../nosuch.yaml does not exist"),
    ("toy_tuned.yaml", "", "no experiment or study toy_tuned.yaml; did you mean toy_tuned?"),
    ("toy", "nrom=layernorm", "unknown key nrom; did you mean norm?"),
    ("toy", "norm=layernorm,powernrom", "unknown norm 'powernrom'; did you mean powernorm?"),
    ("toy", "placement=prepre", "unknown placement 'prepre'"),
    ("toy", "model.norm_typ=rmsnorm", "unknown key norm_typ; did you mean norm_type?"),
    ("toy", "norm_alpha_fw=1", "unknown key norm_alpha_fw; did you mean norm_alpha_fwd?"),
    ("toy", "seed=1,a", "seed is a; it must be an integer from 0"),
]


@pytest.mark.parametrize(("experiment", "override", "message"), WRONG)
def test_what_is_unknown_is_refused_with_the_nearest_name(experiment, override, message):
    with pytest.raises(CommandError, match=message) as refused:
        check_names(Request(experiment, overrides_by_key([override] if override else [])))
    assert refused.value.status == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [("seed=1", "seed=2"), ("norm_eps=1", "+model.norm_eps=2"), ("task.x=1", "task.x=2")],
)
def test_a_key_with_two_values_is_refused(first, second):
    assert overrides_by_key([first, first, "~task.y"]) == {
        first.split("=")[0]: "1",
        "~task.y": None,
    }
    with pytest.raises(UsageError, match="is given twice, as 1 and 2; give one"):
        overrides_by_key([first, second])


@pytest.mark.parametrize(
    "override",
    ["norm=rmsnorm,layernorm", "+model.x=1", "norm_init=gpt2", "seed=range(1,3)", "norm='rmsnorm'"],
)
def test_what_is_known_or_of_hydras_syntax_is_left_to_the_composition(override):
    check_names(Request("toy", overrides_by_key([override])))


def test_an_experiment_is_no_study():
    check_is_study("encoder_norms")
    with pytest.raises(CommandError, match="toy is an experiment, not a study; give the name"):
        check_is_study("toy")


def test_norms_of_a_user_dir_are_left_to_its_import(tmp_path):
    check_names(Request("toy", {"norm": "mine", "norm_of_mine": "1"}, user_dir=tmp_path))


def test_the_keys_of_fairseqs_groups_are_those_of_its_dataclasses():
    groups = {each.name: each.default for each in fields(FairseqConfig)}
    expected = {
        group: {each.name for each in fields(kind)} - {"_name"}
        for group, kind in groups.items()
        if is_dataclass(kind)
    }
    assert keys_of_groups() == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        *(((verb, "toyy"), "did you mean toy?") for verb in ("run", "sweep", "study", "tune")),
        (("status", "toyy"), "did you mean toy?"),
        (("status", "toy", "--work", "none"), "no run of toy was begun in "),
        (("sweep", "toy", "optimization.lrr=1"), "Could not override 'optimization.lrr'"),
        (("run", "toy", "--dry-run", "--work", "none"), "toy: 1 run, 1 to do; how long is not"),
    ],
)
def test_an_answer_without_a_training_costs_no_import_of_torch(argv, message):
    code = (
        "import sys; from norm_plugin.cli import main\n"
        f"try: main({argv})\n"
        "except Exception as error: print(error)\n"
        "print(sorted({'torch', 'fairseq', 'pandas'} & set(sys.modules)))"
    )
    folder = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    first, *_, modules = done.stdout.splitlines()
    assert message in first and modules == "[]"


def test_an_experiment_of_ones_own_finds_the_sizes_of_a_checkout_with_any_name(
    tmp_path, monkeypatch
):
    configs = tmp_path / "Jürgen's (1), a=b #2" / "configs"
    shutil.copytree(CONFIGS, configs)
    monkeypatch.setattr(configuration, "CONFIGS", configs)
    own = tmp_path / "mine.yaml"
    own.write_text((CONFIGS / "toy.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    small = configuration.read_configuration(str(own), ["size=smoke"])["optimization"]
    assert small != configuration.read_configuration(str(own))["optimization"]


@pytest.mark.parametrize("which", ["default: true", "preset: short"])
def test_two_files_of_one_name_cannot_stand_for_the_same_experiment(which, tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "CONFIGS", tmp_path)
    experiment = f"{{name: doubled, corpus: toy, metric: bleu, {which}}}"
    for name in ("a", "b"):
        section = f"hydra: {{runtime: {{choices: {{experiment: {experiment}}}}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(section, encoding="utf-8")
    with pytest.raises(CommandError, match="a.yaml and .*b.yaml both have the name doubled and"):
        experiments.find_experiment("doubled", "short" if "preset" in which else None)
