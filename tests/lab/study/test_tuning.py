"""What tuning shows: chosen values, flat curves, and sensitivity to the learning rate."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from made_up_results import folder_of, made_up
from norm_lab.report.page import main
from norm_lab.study.study import read_study
from norm_lab.study.tuning import (
    choose,
    chosen_table,
    learning_rate_sensitivity,
    read_tuned,
    select_best_per_arm,
)
from norm_plugin.io.command_line import CommandError

KEY = "optimization.lr"


def trials_of(**arms):
    """Each arm: its losses by learning rate, a list per seed; None if it diverged."""
    rows = [
        (arm, float(lr), seed, math.inf if loss is None else loss)
        for arm, by_rate in arms.items()
        for lr, losses in by_rate.items()
        for seed, loss in enumerate(losses, start=1)
    ]
    return pd.DataFrame(rows, columns=["arm", "lr", "seed", "valid_loss"])


STEEP = {0.1: [3.0, 3.2], 0.2: [2.0, 2.2], 0.4: [5.0, None]}
FLAT = {0.1: [3.0, 2.0], 0.2: [2.9, 2.0], 0.4: [4.0, 4.1]}


def test_each_arm_has_the_value_with_the_best_mean_and_divergence_is_the_worst():
    trials = trials_of(steep=STEEP, flat=FLAT)
    assert choose(trials, ["lr"]) == {"steep": (0.2,), "flat": (0.2,)}
    assert choose(trials_of(a={0.2: [1.0], 0.1: [1.0]}), ["lr"]) == {"a": (0.1,)}
    worst = trials_of(a={0.1: [1.0, None], 0.2: [2.4, 2.5]}, b={0.1: [None], 0.2: [None]})
    assert choose(worst, ["lr"]) == {"a": (0.2,), "b": (0.1,)}
    outlier = trials_of(a={0.1: [1.0, 1.0, 4.0], 0.2: [1.5, 1.5, 1.5]})
    assert choose(outlier, ["lr"]) == {"a": (0.2,)}  # not the median


def test_the_choice_of_two_keys_is_a_point():
    table = pd.DataFrame(
        [("a", lr, warmup, 1, lr * warmup) for lr in (1, 2) for warmup in (3, 4)],
        columns=["arm", "lr", "warmup", "seed", "valid_loss"],
    )
    assert choose(table, ["lr", "warmup"]) == {"a": (1, 3)}


def test_a_flat_curve_is_noted():
    """The next best value is behind by less than the deviation between seeds."""
    table = chosen_table(trials_of(steep=STEEP, flat=FLAT), {"steep": 0.2, "flat": 0.2}).set_index(
        "arm"
    )
    steep, flat = table.loc["steep"], table.loc["flat"]
    assert (steep["next_lr"], steep["behind"]) == (0.1, pytest.approx(1.0))
    assert steep["spread"] == pytest.approx(0.02**0.5) and steep["note"] == ""
    assert flat["note"] == "flat: the choice does not matter"
    assert (steep["grid"], steep["diverged"]) == ("0.1, 0.2, 0.4", "0.4")
    edges = trials_of(a={0.1: [1.0, 1.1], 0.2: [2.0, 2.1]}, b={0.1: [2.0, 2.1], 0.2: [1.0, 1.1]})
    table = chosen_table(edges, {"a": 0.1, "b": 0.2})
    assert table["note"].tolist() == ["on the edge of the grid"] * 2


def test_sensitivity_is_the_mean_excess_over_the_best():
    """It is computed by hand; the worst finite loss, 5.0, replaces that of diverged trials."""
    table = learning_rate_sensitivity(trials_of(a=STEEP, b=FLAT)).set_index("arm")
    first, second = (1.0 + 0.0 + 3.0) / 3, (1.0 + 0.0 + 2.8) / 3
    assert table.loc["a", "sensitivity"] == pytest.approx((first + second) / 2)
    half = 12.7062047 * abs(first - second) / 2  # t with one degree of freedom
    assert table.loc["a", "sensitivity_high"] == pytest.approx((first + second) / 2 + half)
    assert (table.loc["a", "from_lr"], table.loc["a", "to_lr"]) == (0.1, 0.4)


def tuned_runs(tmp_path, values=(0.001, 0.002)):
    """layernorm is best at 0.002, far at 0.001; the recipe has 0.001."""
    runs = []
    for lr in values:
        for norm, loss in (("layernorm", 5 - 1000 * lr), ("far", 1000 * lr)):
            for seed in (1, 2):
                label = norm if lr == 0.001 else f"{norm}-lr-{lr:g}"
                run = made_up(label, seed, 30 + loss + seed, settings__optimization={"lr": [lr]})
                run["curves"]["valid"] = [{"epoch": 1, "updates": 30, "loss": loss + seed / 10}]
                runs.append({**run, "differs": {} if lr == 0.001 else {KEY: [lr]}})
    return folder_of(tmp_path / "results", *runs)


def test_runs_that_differ_in_a_key_are_reported_together(tmp_path, undrawn):
    folders = tuned_runs(tmp_path)
    with pytest.raises(CommandError, match="differ in settings of optimization"):
        read_study(folders)
    study = read_study(folders, vary=[KEY])
    chosen, tuned = select_best_per_arm(study, KEY)
    assert tuned.chosen == {"layernorm, pre": 0.002, "far, pre": 0.001}
    assert len(tuned.trials) == 8 and len(chosen.runs) == 4
    assert (chosen.arms, chosen.baseline) == (["layernorm, pre", "far, pre"], "layernorm, pre")
    out = tmp_path / "out"
    argv = [*map(str, folders), "--out", str(out), "--vary", KEY, "--label", "far=Far, ours"]
    assert main(argv) == 0
    text = (out / "report.md").read_text()
    assert "| layernorm | 0.002 | 2 |" in text and "| Far, ours | 0.001 | 2 |" in text
    assert "also chose the value" in text
    assert (out / "sensitivity.svg").exists() and f"--vary {KEY}" in text


def test_a_value_is_chosen_on_the_seeds_of_all_values(tmp_path):
    """Seed 1 has the least losses; the mean at the value with seed 1 alone is the least."""
    folders = tuned_runs(tmp_path)
    (folders[0] / "far-lr-0.002-seed2.json").unlink()  # seed 1 has a loss of 2.1
    for number, loss in ((1, 2.0), (2, 3.0)):
        path = folders[0] / f"far-seed{number}.json"
        result = json.loads(path.read_text())
        result["curves"]["valid"][0]["loss"] = loss
        path.write_text(json.dumps(result))
    _, tuned = select_best_per_arm(read_study(folders, vary=[KEY]), KEY)
    assert tuned.chosen["far, pre"] == 0.001
    far = tuned.trials[tuned.trials["arm"] == "far, pre"]
    assert far["seed"].tolist() == [1, 1]


@pytest.mark.parametrize("arm", ["far", "layernorm"])
def test_an_arm_without_validation_losses_is_left_out(arm, tmp_path):
    folders = tuned_runs(tmp_path)
    for path in folders[0].glob(f"{arm}*.json"):
        result = json.loads(path.read_text())
        path.write_text(json.dumps(result | {"curves": None}))
    study = read_study(folders, vary=[KEY])
    if arm == "layernorm":  # the baseline
        with pytest.raises(CommandError, match=r"no run of layernorm, pre has a validation loss"):
            select_best_per_arm(study, KEY)
        return
    chosen, tuned = select_best_per_arm(study, KEY)
    assert chosen.arms == ["layernorm, pre"]
    assert tuned.rule.endswith("Excluded, because no run has a validation loss: far, pre.")


def test_there_has_to_be_something_to_vary(tmp_path):
    folders = tuned_runs(tmp_path, values=(0.001,))
    with pytest.raises(CommandError, match=f"no arm has runs at two values of {KEY}"):
        select_best_per_arm(read_study(folders, vary=[KEY]), KEY)
    with pytest.raises(CommandError, match="no run has the setting optimization.rate"):
        select_best_per_arm(read_study(folders), "optimization.rate")


def test_a_tuned_study_shows_its_trials(tmp_path):
    """Runs at other values than the trials; of a second key, the chosen value counts."""
    second = "lr_scheduler.warmup_updates"
    trials = [
        {"arm": norm, KEY: lr, second: updates, "seed": 9, "valid_loss": loss}
        for norm in ("layernorm", "far")
        for lr, loss in ((0.001, 2.0), (0.002, None))
        for updates in (10, 20)
    ]
    chosen = {norm: {"chosen": {KEY: 0.001, second: 20}} for norm in ("layernorm", "far")}
    grid = {KEY: [0.001, 0.002], second: [10, 20]}
    path = tmp_path / "mine.tuned.json"
    content = {"rule": "the least", "grid": grid, "arms": chosen, "trials": trials}
    path.write_text(json.dumps(content))
    folders = tuned_runs(tmp_path, values=(0.001,))
    study = read_study(folders)
    study.runs[f"settings.{second}"] = 20
    tuned = read_tuned(study, path)
    assert tuned.chosen == {"layernorm, pre": 0.001, "far, pre": 0.001}
    assert tuned.trials["arm"].tolist() == ["layernorm, pre"] * 2 + ["far, pre"] * 2
    assert tuned.trials["valid_loss"].tolist() == [2.0, math.inf] * 2
    study.runs[f"settings.{second}"] = 10  # as without --tuned
    with pytest.raises(CommandError, match=f"was trained with {second}=10.* selects 20"):
        read_tuned(study, path)


def test_tiny_values_differ(tmp_path):
    """As those of Adam's eps do."""
    eps = "optimizer.adam_eps"
    losses = {(0.001, 1e-9): 9.0, (0.001, 1e-8): 5.0, (0.002, 1e-9): 8.0, (0.002, 1e-8): 6.0}
    trials = [
        {"arm": norm, KEY: lr, eps: value, "seed": 9, "valid_loss": loss}
        for norm in ("layernorm", "far")
        for (lr, value), loss in losses.items()
    ]
    content = {
        "rule": "the least",
        "grid": {KEY: [0.001, 0.002], eps: [1e-9, 1e-8]},
        "arms": {norm: {"chosen": {KEY: 0.001, eps: 1e-8}} for norm in ("layernorm", "far")},
        "trials": trials,
    }
    path = tmp_path / "mine.tuned.json"
    path.write_text(json.dumps(content))
    study = read_study(tuned_runs(tmp_path, values=(0.001,)))
    study.runs[f"settings.{eps}"] = 1e-8
    assert read_tuned(study, path).trials["valid_loss"].tolist() == [5.0, 6.0] * 2
    study.runs[f"settings.{eps}"] = 1e-9
    with pytest.raises(CommandError, match=f"was trained with {eps}=1e-09.* selects 1e-08"):
        read_tuned(study, path)


def test_a_declared_arm_must_have_one_value(tmp_path, undrawn):
    """With --vary the runs choose it, and then nothing was declared before them."""
    folders = tuned_runs(tmp_path)
    study = tmp_path / "mine.yaml"
    study.write_text(
        f'experiment: toy\noverrides: ["seed=1,2"]\ntune: {{grid: {{{KEY}: [0.001, 0.002]}}, '
        "seeds: [9]}\nprimary: [{arm: far, baseline: layernorm}]\n"
        "labels: {far: far away, later: not yet run}\n"
    )
    command = [*map(str, folders), "--out", str(tmp_path / "out"), "--study", str(study)]
    with pytest.raises(CommandError, match="a comparison of .*, which may be .* or .*; report"):
        main(command)
    assert main([*command, "--vary", KEY]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "also chose the value" in text and "Comparisons that the study declares" not in text
    assert "| far away | 0.001 | 2 |" in text
