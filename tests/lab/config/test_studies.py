"""What the file of a study declares, and what is refused before anything is trained."""

from __future__ import annotations

import pytest

from fake_runs import composed
from norm_lab.config import compose
from norm_lab.config.options import Request
from norm_lab.config.studies import (
    AFTER,
    BEFORE,
    PrimaryComparison,
    Tuning,
    check_study,
    outcome_unit,
    read_study_file,
    results_folder,
    study_name,
    study_names,
    study_path,
    tuned_path,
)
from norm_lab.metrics import find_metric
from norm_lab.paths import STUDIES
from norm_plugin.io.command_line import CommandError

SEEDS = {"layernorm": {1, 2}, "adanorm": {1, 2}, "dyt": {3}}
TUNE = "tune: {grid: {optimization.lr: [0.2, 0.1]}, seeds: [101], bound: [1, 0.01]}"


def write(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(f"experiment: toy\n{text}\n")
    return path


def test_a_study_as_its_file_declares_it(tmp_path):
    study = read_study_file(
        write(
            tmp_path,
            "overrides: ['seed=1,2']\narms: [[norm=layernorm]]\ndeclared: after the runs\n"
            "vary: [lr_scheduler]\n"
            "primary: [{arm: adanorm, baseline: layernorm, outcome: valid_loss,\n"
            "           test: equivalence, margin: 0.02 bits}]\n" + TUNE,
        )
    )
    assert (study.experiment, study.overrides) == ("toy", ["seed=1,2"])
    assert (study.arms, study.vary) == ([["norm=layernorm"]], ["lr_scheduler"])
    assert study.tuned == ("optimization.lr",)
    declared = PrimaryComparison(
        "adanorm", "layernorm", "valid_loss", "equivalence", "0.02 bits", declared=AFTER
    )
    assert study.primary == [declared] and declared.size == 0.02
    assert study.tune == Tuning({"optimization.lr": [0.1, 0.2]}, [101], bound=[0.01, 1])
    check_study(study, find_metric("accuracy"), SEEDS)


def test_a_study_is_found_by_its_name_its_folder_and_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, file = tmp_path / "own" / "study.yaml", tmp_path / "mine.yaml"
    own.parent.mkdir()
    for path in (own, file):
        path.write_text("experiment: toy\n")
    assert "encoder_norms" in study_names()
    ours = STUDIES / "encoder_norms" / "study.yaml"
    for name, path in {
        "encoder_norms": ours,
        str(ours.parent): ours,
        "own": own,
        "./own/": own,
        str(own): own,
        "mine.yaml": file,
    }.items():
        assert study_path(name) == path
        assert compose.find_study(name).path == path
    assert [study_name(path) for path in (ours, own, file)] == ["encoder_norms", "own", "mine"]
    assert [tuned_path(path).name for path in (own, file)] == ["tuned.json", "mine.tuned.json"]
    assert results_folder("encoder_norms") == ours.parent  # and a folder here comes first
    assert str(results_folder("own")) == "own" and str(results_folder("new")) == "new"
    with pytest.raises(CommandError, match="no experiment or study nothing"):
        compose.find_study("nothing")


def test_a_study_of_one_arm_declares_nothing(tmp_path):
    study = read_study_file(write(tmp_path, ""))
    assert (study.arms, study.primary, study.declared, study.tuned) == ([[]], [], BEFORE, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "seeds: [1]",
            "Key 'seeds' not in 'StudyFile'.*; the keys are experiment, overrides, arms",
        ),
        ("vary: 3", "full_key: vary"),
        ("labels: {layernorm: best, dyt: best}", "2 arms have the label 'best'; give each its own"),
        ("declared: never", "declared is 'never'"),
        ("primary: [{arm: dyt}]", r"missing mandatory value: baseline full_key: primary\[0\]"),
        ("primary: [{arm: dyt, baseline: none, test: both}]", "test is 'both'"),
        ("primary: [{arm: dyt, baseline: none, margin: 1 BLEU}]", "needs a margin"),
        ("primary: [{arm: dyt, baseline: none, test: equivalence}]", "a margin, as 0.5 BLEU"),
        ("arms: []", "arms is empty"),
        ("primary: [{arm: dyt, baseline: none, paired: maybe}]", "full_key: .*paired"),
        ("tune: {seeds: [1]}", "grid must have one or two keys"),
        *(
            (
                f"tune: {{grid: {{optimization.lr: {values}}}, seeds: [1]}}",
                "optimization.lr is .*; it must be 2 or more different numbers of 0 or more",
            )
            for values in (
                *("[1]", "[1, 1]", "[0.1, x]", "[.inf, 1]", "[-1, 1]"),
                "[0.001, 0.00100000001]",  # equal in the six digits that a run gets
            )
        ),
        ("tune: {grid: {optimization.lr: [1, 2]}, seeds: []}", "seeds is .*; it must be 1 or more"),
        ("tune: {grid: {optimization.lr: [1, 2]}, seeds: [1.5]}", "full_key: tune.seeds"),
        (
            "tune: {grid: {optimization.lr: [1, 2]}, seeds: [1], bound: [1, 2, 3]}",
            "bound of optimization.lr is .*; it must be .LEAST, GREATEST.",
        ),
        (
            "tune: {grid: {optimization.lr: [1, 2]}, seeds: [1], bound: {dropout: [1, 2]}}",
            "bound of dropout is .*, of a key of the grid",
        ),
        *(
            (
                f"primary: [{{arm: {arm}, baseline: none}}]",
                f"it compares {arm} with none; each must be an arm or the difference of two, as "
                "A minus B, and none compared with itself",
            )
            for arm in ("none", "dyt minus dyt", "dyt minus none minus adanorm")
        ),
        ("tune: {grid: {}, seeds: [1]}", "one or two keys"),
    ],
)
def test_what_is_no_study_is_refused(tmp_path, text, message):
    with pytest.raises(CommandError, match=message):
        read_study_file(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "arm: unified, baseline: dyt",
            "unified, which is not declared or has no run; choose from adanorm; dyt",
        ),
        ("arm: dyt, baseline: layernorm", "dyt minus layernorm is paired, .* no seed in common"),
        ("arm: adanorm, baseline: layernorm, outcome: chrf", "accuracy has no outcome chrf"),
        *(
            (
                f"arm: adanorm, baseline: layernorm, test: equivalence, margin: {margin}",
                "the margin is .* such as '0.5 points'",
            )
            for margin in (
                *("0.5", "points", "0.5 BLEU"),
                *("-1 points", "0 points", "nan points", "inf points"),
            )
        ),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(tmp_path, text, message):
    study = read_study_file(write(tmp_path, f"primary: [{{{text}}}]"))
    with pytest.raises(CommandError, match=message):
        check_study(study, find_metric("accuracy"), SEEDS)


def test_independent_arms_may_be_declared(tmp_path):
    text = "primary: [{arm: dyt, baseline: layernorm, paired: false}]"
    check_study(read_study_file(write(tmp_path, text)), find_metric("accuracy"), SEEDS)


def test_tuning_seeds_are_none_of_the_runs(tmp_path):
    study = read_study_file(write(tmp_path, TUNE.replace("101", "101, 2")))
    with pytest.raises(CommandError, match="the tuning seed 2 is also a seed of the study's runs"):
        check_study(study, find_metric("accuracy"), SEEDS)


def test_a_comparison_may_name_arms_by_their_labels(tmp_path):
    text = (
        "labels: {dyt-kaiming: mine, dyt: DyT}\nprimary: [{arm: mine minus DyT, baseline: adanorm}]"
    )
    (comparison,) = read_study_file(write(tmp_path, text)).primary
    assert (comparison.arm, comparison.baseline) == ("dyt-kaiming minus dyt", "adanorm")


def test_a_label_names_an_arm_of_the_study(tmp_path):
    text = "arms: [['norm=layernorm,rmsnorm']]\nlabels: {rmsnorm: RMSNorm, layernom: LayerNorm}"
    path = str(write(tmp_path, text))
    with pytest.raises(CommandError, match="names the arm layernom, which is not declared"):
        compose.compose_runs(Request(path, grid=True, work=tmp_path))


def test_a_list_of_values_without_quotes_is_refused(tmp_path):
    """YAML takes its second value for another override."""
    path = str(write(tmp_path, "overrides: [seed=1,2]"))
    with pytest.raises(CommandError, match="'2' is not KEY=VALUE; .* need quotes: \"seed=1,2\""):
        compose.compose_runs(Request(path, grid=True, work=tmp_path))


@pytest.mark.parametrize("key", ["seed", "norm"])
def test_an_override_that_the_arms_would_win_over_is_refused(tmp_path, key):
    """An override that every arm replaces is an error, not ignored."""
    path = str(write(tmp_path, "overrides: [seed=1]\narms: [[norm=dyt], [norm=none, 'seed=2,3']]"))
    with pytest.raises(CommandError, match=f"{key}=7 has no effect, as an arm .* sets {key}="):
        compose.compose_runs(Request(path, {key: "7"}, grid=True, work=tmp_path))


def test_the_study_of_warm_up_has_the_schedules_of_the_paper(monkeypatch):
    """Xiong et al. 2020: section 3.2, its T = 1 among them, and the fixed rate of section H."""
    monkeypatch.setattr(compose, "check_training", lambda flags: "")
    runs = [run.settings for run in composed("warmup")]
    inverse = [
        (placement, [lr], "inverse_sqrt", updates, start)
        for placement in ("post", "pre")
        for lr in (0.001, 0.005)
        for updates, start in ((1000, 1e-7), (1000, lr), (1, 1e-7))
    ]
    fixed = ("post", [0.0001], "fixed", 0, None)
    for run in runs:
        schedule = run["lr_scheduler"]
        chosen = (run["model"]["norm_placement"], run["optimization"]["lr"], schedule["_name"])
        chosen += (schedule["warmup_updates"], schedule.get("warmup_init_lr"))
        assert chosen in (*inverse, fixed)
    assert len(runs) == len(inverse) + 1


def test_the_unit_of_an_outcome():
    bleu = find_metric("bleu")
    units = {"score": "BLEU", "sacrebleu": "BLEU", "chrf": "chrF", "valid_loss": "bits per token"}
    assert {name: outcome_unit(name, bleu, "here") for name in units} == units


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{arm: dyt, baseline: none}", "{arm: dyt, baseline: none, outcome: score}"),
        ("{arm: dyt, baseline: none}", "{arm: none, baseline: dyt}"),
        ("{arm: dyt, baseline: none}", "{arm: dyt, baseline: none, outcome: tokenized}"),
        ("{arm: dyt minus none, baseline: rmsnorm minus none}", "{arm: rmsnorm, baseline: dyt}"),
        (
            "{arm: dyt minus none, baseline: rmsnorm minus adanorm}",
            "{arm: none minus dyt, baseline: adanorm minus rmsnorm}",
        ),
    ],
)
def test_a_hypothesis_is_declared_once(tmp_path, first, second):
    study = read_study_file(write(tmp_path, f"primary: [{first}, {second}]"))
    seeds = dict.fromkeys(("dyt", "none", "rmsnorm", "adanorm"), {1, 2})
    with pytest.raises(CommandError, match="is declared twice, maybe with other names or signs"):
        check_study(study, find_metric("bleu"), seeds)
    study.primary[1].outcome = "chrf"
    check_study(study, find_metric("bleu"), seeds)
