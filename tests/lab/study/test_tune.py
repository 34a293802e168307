"""Tuning: the choice of each arm, a grid that grows, and arms that run at their own values."""

from __future__ import annotations

import json
import signal
from itertools import product

import pytest

from fake_runs import FakeRuns, spec_of, value
from norm_lab.config import options
from norm_lab.config.studies import StudyFile, Tuning
from norm_lab.paths import ROOT
from norm_lab.run import code
from norm_lab.study import tune
from norm_lab.study.tune import (
    Arm,
    compose_trials,
    growth_bound,
    point_overrides,
    widen,
    with_own_results,
)

LR = "optimization.lr"
STUDY = """experiment: toy
overrides: ["seed=11,12"]
arms:
  - [norm=layernorm]
  - [norm=powernorm, placement=post]
tune:
  grid: {optimization.lr: [0.001, 0.002]}
  seeds: [1, 2]
  bound: [0.0005, 0.004]
"""
BEST = {"layernorm": 0.001, "powernorm-post": 0.004}


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ([2.0], (1.0, 2.0, 4.0)),
        ([4.0], (1.0, 2.0, 4.0, 8.0)),
        ([2.0, 1.0], (0.5, 1.0, 2.0, 4.0)),
        ([1.0, 4.0], (0.5, 1.0, 2.0, 4.0, 8.0)),
    ],
)
def test_the_grid_grows_by_its_factor_where_the_best_point_of_an_arm_lies_on_its_edge(
    best, expected
):
    grid = {LR: (1.0, 2.0, 4.0)}
    assert widen(grid, [(each,) for each in best], {LR: (0.01, 100)}) == {LR: expected}


def test_the_grid_does_not_grow_beyond_its_bound():
    grid = {LR: (0.001, 0.002)}
    assert widen(grid, [(0.001,), (0.002,)], {LR: (0.001, 0.004)}) == {LR: (0.001, 0.002, 0.004)}
    low, high = growth_bound((0.001, 0.002))
    assert (low, high) == pytest.approx((0.001 / 16, 0.002 * 16))


@pytest.mark.parametrize(
    ("bound", "of_dropout"),
    [([1, 2], (0.1 / 16, 0.2 * 16)), ({"dropout": [0.1, 0.2], "lr": [1, 2]}, (0.1, 0.2))],
)
def test_a_bound_is_of_the_first_key_or_of_those_that_it_names(bound, of_dropout):
    grid = {"lr": [1, 2], "dropout": [0.1, 0.2]}
    limits = tune.bounds(StudyFile("toy", tune=Tuning(grid, seeds=[1], bound=bound)))
    assert limits["lr"] == (1, 2) and limits["dropout"] == pytest.approx(of_dropout)


@pytest.mark.parametrize(
    ("values", "grown"), [((0.0, 0.1), (0.0, 0.1, 0.2)), ((0.0, 0.1, 0.3), (0.0, 0.1, 0.3, 0.9))]
)
def test_a_grid_from_0_grows_upwards_only(values, grown):
    """Grow a grid such as those of dropout and warm-up."""
    bound = {LR: growth_bound(values)}
    assert widen({LR: values}, [(values[0],), (values[-1],)], bound)[LR] == pytest.approx(grown)


def test_a_learning_rate_is_a_list_in_fairseq():
    keys = [LR, "lr_scheduler.warmup_updates"]
    assert point_overrides(keys, (0.0005, 4000)) == [
        "optimization.lr=[0.0005]",
        "lr_scheduler.warmup_updates=4000",
    ]


@pytest.fixture(scope="module")
def composed_here():
    """Compose the trials in this process, whose caches the forked ones then have."""
    for arm in (("norm=layernorm",), ("norm=powernorm", "placement=post")):
        for rate in (0.0005, 0.001, 0.002, 0.004):
            spec_of("toy", *arm, f"{LR}=[{rate}]")


@pytest.fixture
def study(tmp_path, composed_here):
    path = tmp_path / "mine.yaml"
    path.write_text(STUDY)
    return path


def command(runs, verb, study, *more, **options):
    options = {"FAKE_BEST_LR": json.dumps(BEST), **options}
    return runs.command(verb, str(study), "--work", str(runs.work), "--jobs", "2", *more, **options)


def rates(runs):
    """The norm, the seed and the learning rate of each training since the last call."""
    trained = [call for call in runs.take_calls() if "fairseq_cli.train" in call]
    return sorted(
        (value(call, "--norm-type"), value(call, "--seed"), float(value(call, "--lr")))
        for call in trained
    )


def chosen(study):
    content = json.loads(study.with_suffix(".tuned.json").read_text())
    return {arm: tuned["chosen"][LR] for arm, tuned in content["arms"].items()}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, composed_here):
    """A study after ``tune``, what that printed, and the rates of its trainings."""
    runs = FakeRuns(tmp_path_factory.mktemp("tuned"))
    study = runs.folder / "mine.yaml"
    study.write_text(STUDY)
    result = command(runs, "tune", study)
    assert result.returncode == 0, result.stderr
    return runs, study, result.stdout, rates(runs)


def test_each_arm_runs_at_its_own_rate(tuned):
    runs, study, printed, trained = tuned
    assert "at most 16 trials and 4 runs in all: how long is not known" in printed
    assert "8 trials of 2 arms with 2 seeds at optimization.lr 0.001, 0.002; while" in printed
    assert "\npowernorm-post is best at optimization.lr 0.002, the greatest value of the" in printed
    assert "\nthe grid is now optimization.lr 0.0005, 0.001, 0.002, 0.004\n" in printed
    content = json.loads(study.with_suffix(".tuned.json").read_text())
    assert chosen(study) == BEST
    grid = [0.0005, 0.001, 0.002, 0.004]
    assert content["grid"] == {LR: grid}
    assert len(content["trials"]) == len(trained) == 2 * 2 * len(grid)
    assert {(seed, rate) for _, seed, rate in trained} == set(product("12", grid))

    path = study.with_suffix(".tuned.json")
    path.write_text(f"{path.read_text()} ")
    assert command(runs, "tune", study, "--status").returncode == 0
    assert path.read_text().endswith(" ")  # to look at it writes nothing
    again = command(runs, "tune", study)
    assert again.returncode == 0 and "already has the tuned values" in again.stdout
    swept = command(runs, "sweep", study, "--tuned")
    assert swept.returncode == 0, swept.stderr
    assert rates(runs) == sorted(
        (arm.removesuffix("-post"), seed, rate)
        for arm, rate in BEST.items()
        for seed in ("11", "12")
    )


def test_arms_are_tuned_with_folded_norms(runs, study):
    study.write_text(STUDY.replace("[1, 2]", "[1]"))
    result = command(runs, "tune", study, "--fold-norms")
    assert result.returncode == 0, result.stderr
    assert chosen(study) == BEST


def test_a_tuning_that_is_killed_goes_on(runs, study):
    study.write_text(STUDY.replace("[1, 2]", "[1]"))
    killed = command(runs, "tune", study, kill_at=40)
    assert killed.returncode == -signal.SIGKILL
    assert not study.with_suffix(".tuned.json").exists()
    result = command(runs, "tune", study)
    assert result.returncode == 0, result.stderr
    assert chosen(study) == BEST


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("norm=powernorm", "norm=none", "other arms or settings (none-post, powernorm-post)"),
        ("seeds: [1, 2]", "seeds: [1, 3]", "another grid or other tuning seeds"),
        ("0.002]", "0.003]", "another grid or other tuning seeds"),
        (
            '["seed=11,12"]',
            "[seed=11, model.dropout=0.2]",
            "other arms or settings (layernorm, layernorm-dr",
        ),
    ],
)
def test_a_tuning_of_another_study_is_refused(before, after, reason, tuned, study):
    runs, of, *_ = tuned
    study.with_suffix(".tuned.json").write_text(of.with_suffix(".tuned.json").read_text())
    study.write_text(STUDY.replace(before, after))
    refused = command(runs, "sweep", study, "--tuned")
    assert refused.returncode == 1 and f"is for {reason}" in refused.stderr
    assert "remove it, and tune again" in refused.stderr


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("code", {"norm_plugin": "0"}, "another version of norm_plugin, torch or fairseq"),
        ("data", ["0"], "other data"),
    ],
)
def test_a_tuning_of_other_code_or_data_is_refused(key, value, reason, tuned, study, tmp_path):
    runs, of, *_ = tuned
    content = json.loads(of.with_suffix(".tuned.json").read_text())
    study.with_suffix(".tuned.json").write_text(json.dumps({**content, key: value}))
    for work in ([], ["--work", str(tmp_path / "new")]):  # where no corpus is prepared yet
        refused = command(runs, "sweep", study, "--tuned", *work)
        assert refused.returncode == 1 and f"is for {reason}; remove it" in refused.stderr


def test_a_trial_of_other_code_is_refused(runs, study, monkeypatch):
    """Else tuned.json, removed to tune again, would be that of the code of today with its loss."""
    study.write_text(STUDY.replace("[1, 2]", "[1]").replace("[0.0005, 0.004]", "[0.001, 0.002]"))
    assert command(runs, "tune", study).returncode == 0
    study.with_suffix(".tuned.json").unlink()
    monkeypatch.setattr(tune, "code_digest", lambda: {"norm_plugin": "0", "torch": "0"})
    again = command(runs, "tune", study)
    assert again.returncode == 1 and "was trained by another version of norm_plugin" in again.stderr
    assert not study.with_suffix(".tuned.json").exists()


def test_a_published_study_is_repeated_at_its_values_by_other_code(tuned, tmp_path):
    runs, of, *_ = tuned
    content = json.loads(of.with_suffix(".tuned.json").read_text())
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY)
    (folder / "tuned.json").write_text(json.dumps({**content, "code": {"norm_plugin": "0"}}))
    assert command(runs, "sweep", folder, "--tuned", "--dry-run").returncode == 1
    (folder / "runs.jsonl").touch()
    assert command(runs, "sweep", folder, "--tuned", "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("placement=post", '"optimization.lr=[0.1]"', f"sets {LR}, which tune varies"),
        (STUDY[STUDY.index("tune:") :], "", "has no section tune"),
    ],
)
def test_a_study_that_cannot_be_tuned_is_refused_before_anything_is_trained(
    before, after, message, runs, study
):
    study.write_text(STUDY.replace(before, after))
    refused = command(runs, "tune", study)
    assert refused.returncode in (1, 2) and message in refused.stderr
    assert runs.take_calls() == []


@pytest.mark.parametrize("flags", [["--lr", "0.5"], ["--lr=0.5"]])
def test_a_flag_that_the_grid_sets_is_refused(flags, runs, study):
    """Otherwise every trial would train at it."""
    refused = command(runs, "tune", study, "--", *flags)
    assert refused.returncode == 2
    assert "--lr cannot come after the --: optimization.lr=[0.001] sets it" in refused.stderr
    assert runs.take_calls() == []


def test_what_diverges_is_the_worst(runs, study):
    """Seed 1 diverges at every rate, so every mean is infinite, and the smallest rate is taken."""
    study.write_text(STUDY.replace("[0.0005, 0.004]", "[0.001, 0.002]"))
    result = command(runs, "tune", study, FAKE_TRAINING_OF_SEED=json.dumps({"1": "diverges"}))
    assert result.returncode == 0, result.stderr
    assert set(chosen(study).values()) == {0.001}


def test_a_trial_that_fails_leaves_the_study_untuned(runs, study):
    study.write_text(STUDY.replace("[1, 2]", "[1]").replace("[0.0005, 0.004]", "[0.001, 0.002]"))
    result = command(runs, "tune", study, FAKE_TRAINING_OF_SEED=json.dumps({"1": "fails"}))
    assert result.returncode == 1 and "4 failed of 4" in result.stdout
    assert not study.with_suffix(".tuned.json").exists()


def test_a_trial_writes_where_it_is_looked_for(study, tmp_path):
    argv = [str(study), "--results", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    args = options.parse(options.sweep_parser("tune"), argv)
    request = with_own_results(options.request_of(args))
    (spec,) = compose_trials(request, {"a": Arm(("norm=none",), "", {})}, [LR], [("a", (0.1,), 7)])
    assert spec.overrides == ("norm=none", f"{LR}=[0.1]", "seed=7")
    assert spec.result.parent == tmp_path / "out/tuning/toy"


KINDS = {path.suffix for name in code.CODE for path in (ROOT / "norm_plugin" / name).rglob("*.*")}


@pytest.mark.parametrize("kind", sorted(KINDS - {".so", ".pyc"}))
def test_a_change_of_any_source_is_other_code(kind, tmp_path, monkeypatch):
    source = tmp_path / "norm_plugin" / "kernels" / "cpu" / f"columns{kind}"
    source.parent.mkdir(parents=True)
    source.write_text("before")
    monkeypatch.setattr(code, "PLUGIN", tmp_path / "norm_plugin")
    before = code.code_digest()
    source.write_text("after")
    assert code.code_digest() != before
