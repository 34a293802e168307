"""Which runs may be in one comparison."""

from __future__ import annotations

import pytest

from made_up_results import at_rate, folder_of, made_up, study_of_three, write_failure
from norm_lab.config.studies import read_study_file
from norm_lab.report.score_table import score_table
from norm_lab.results.table import read_results
from norm_lab.run.record import Arm
from norm_lab.study.study import read_study
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.config import KERNELS_FOUND  # the name by which fairseq stores it


def test_the_baseline_stands_first_and_runs_are_grouped(tmp_path):
    study = read_study(study_of_three(tmp_path))
    assert study.baseline == "layernorm, pre"
    assert study.arms == ["layernorm, pre", "alike, pre", "far, pre"]
    runs = study.runs[study.runs["arm"] == study.baseline]
    assert list(zip(runs["seed"], runs["score"])) == [(1, 35.0), (2, 35.3), (3, 34.9)]


def test_placements_are_settings_of_their_own(tmp_path):
    stock = made_up("stock")
    runs = made_up(), made_up(placement="post"), made_up(placement="post", seed=2), stock
    study = read_study(folder_of(tmp_path, *runs))
    # the placement of the most runs is the baseline's
    assert study.baseline == "layernorm, post"
    assert set(study.arms[1:]) == {"layernorm, pre", "stock, pre"}


POST = {"model.norm_placement": "post"}


def test_a_placement_in_the_label_of_a_run_is_named_once(tmp_path):
    runs = made_up(), made_up("layernorm-post", placement="post", differs=POST)
    study = read_study(folder_of(tmp_path, *runs))
    assert study.arms == ["layernorm, pre", "layernorm, post"]
    assert list(study.runs["norm"]) == ["layernorm", "layernorm-post"]


def test_two_settings_of_one_name_are_refused(tmp_path):
    runs = made_up(placement="post"), made_up("layernorm-post", placement="post", differs=POST)
    with pytest.raises(CommandError, match="layernorm and layernorm-post are both layernorm, post"):
        read_study(folder_of(tmp_path, *runs))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data__checksum": "decaf"}, "data checksum"),
        ({"split": "valid"}, "test set"),
        ({"settings__optimization": {"key": 2}}, "settings of optimization"),
    ],
)
def test_runs_that_are_not_alike_are_refused(tmp_path, change, what):
    folders = folder_of(tmp_path, made_up(), made_up("other", **change))
    with pytest.raises(
        CommandError, match=f"layernorm seed 1 and other seed 1 of toy_pre differ in {what}"
    ):
        read_study(folders)


def test_seeds_of_one_name_with_other_models_are_refused(tmp_path):
    other = made_up(seed=2, settings__model={"norm_placement": "pre", "norm_eps": 1e-3})
    with pytest.raises(
        CommandError, match="seed 1 and layernorm seed 2 .*differ in settings of model"
    ):
        read_study(folder_of(tmp_path, made_up(), other))


def test_two_versions_of_a_users_norm_are_not_averaged(tmp_path):
    runs = [
        made_up(seed=seed, sources={"my_norms/tanh.py": digest, "my_norms/helper.py": "0"})
        for seed, digest in enumerate(("a1", "b2"), start=1)
    ]
    folders = folder_of(tmp_path, *runs)
    message = "different versions of my_norms/tanh.py; remove the runs and results of one version"
    with pytest.raises(CommandError, match=message):
        read_study(folders)
    with pytest.raises(CommandError, match=message):
        score_table(read_results(*folders))


def common_flags(folder):
    """Three arms with a flag in common: two norms, and one of them with another learning rate."""
    common = {"max-epoch": "2"}
    faster = {**common, "optimization.lr": [0.01]}
    return folder_of(
        folder,
        *(made_up("layernorm-max-epoch-2", seed, differs=common) for seed in (1, 2)),
        made_up("mynorm-max-epoch-2", differs=common),
        made_up("mynorm-max-epoch-2-lr-0.01", differs=faster),
    )


def test_names_leave_out_what_all_runs_share(tmp_path):
    (folder,) = common_flags(tmp_path)
    differs = {"max-epoch": "2", "optimization.lr": [0.1]}
    write_failure(folder, "mynorm-max-epoch-2-lr-0.1", 1, differs=differs)
    study = read_study([folder])  # whose default baseline is the norm layernorm
    assert study.names == [
        "layernorm, pre",
        "mynorm, pre",
        "mynorm-lr-0.01, pre",
        "mynorm-lr-0.1, pre",
    ]
    assert study.common == {"max-epoch": "2"}


@pytest.mark.parametrize("baseline", ["layernorm", "layernorm, pre", "layernorm-max-epoch-2"])
def test_the_baseline_is_a_norm_or_a_row(baseline, tmp_path):
    study = read_study(common_flags(tmp_path), baseline)
    assert (study.baseline, study.arms[0]) == ("layernorm, pre", "layernorm, pre")


def test_the_baseline_has_the_placement_of_the_recipe(tmp_path):
    differs = {"max-epoch": "2"}
    runs = [made_up("layernorm-max-epoch-2", differs=differs)]
    for placement in ("admin", "post"):
        label = f"layernorm-{placement}-max-epoch-2"
        more = {"model.norm_placement": placement}
        runs.append(made_up(label, placement=placement, differs={**differs, **more}))
    study = read_study(folder_of(tmp_path, *runs))
    assert study.names == ["layernorm, pre", "layernorm, admin", "layernorm, post"]


def test_a_norm_whose_settings_all_have_differences_is_no_clear_baseline(tmp_path):
    runs = [
        made_up(f"mynorm-lr-{rate}", differs={"optimization.lr": [rate]}) for rate in (0.1, 0.2)
    ]
    folders = folder_of(tmp_path, *runs, made_up())
    with pytest.raises(CommandError, match="several .* mynorm-lr-0.1, pre; mynorm-lr-0.2, pre"):
        read_study(folders, "mynorm")
    with pytest.raises(
        CommandError, match="no run matches .* none; choose .* --baseline: layernorm"
    ):
        read_study(folders, "none")
    assert read_study(folders, "mynorm-lr-0.2").baseline == "mynorm-lr-0.2, pre"
    assert read_study(folders[:1], "layernorm").baseline == "layernorm, pre"


def declared(tmp_path, text):
    """A study file with these declarations."""
    path = tmp_path / "mine.yaml"
    path.write_text(f'experiment: toy\noverrides: ["seed=1,2,3"]\n{text}')
    return read_study_file(path)


def tuned(tmp_path, *runs):
    """Results of norms at learning rates of their own."""
    results = (
        at_rate(made_up(f"{norm}-lr-{rate}", seed, differs={"optimization.lr": [rate]}), rate)
        for norm, seed, rate in runs
    )
    return folder_of(tmp_path, *results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "a run with seed 4, but .* declares the seeds 1, 2, 3;"),
        ({"experiment": "toys"}, "has runs of toys, but .* is a study of toy;"),
    ],
)
def test_runs_that_are_not_those_of_the_study_are_refused(tmp_path, change, message):
    """Or the page would say that they were declared before the runs."""
    file = declared(tmp_path, "primary: [{arm: dyt, baseline: layernorm}]\n")
    runs = [made_up(norm, **{"seed": 1, **change}) for norm in ("layernorm", "dyt")]
    folders = folder_of(tmp_path, *runs)
    assert read_study(folders).arms == ["layernorm, pre", "dyt, pre"]
    with pytest.raises(CommandError, match=message):
        read_study(folders, file=file)


def test_the_runs_of_an_arm_have_one_training(tmp_path):
    """They have one training even if the arms may differ in it."""
    runs = [made_up(seed=seed) for seed in (1, 2)]
    runs[1]["settings"]["optimization"] = {"max_update": 7000}
    with pytest.raises(CommandError, match="differ in settings of optimization"):
        read_study(folder_of(tmp_path, *runs), vary=["optimization"])


def test_the_runs_of_an_arm_may_have_the_kernels_of_several_machines(tmp_path):
    runs = [made_up(seed=seed) for seed in (1, 2)]
    for run, kernels in zip(runs, ("avx2", "avx512")):
        run["settings"]["model"][KERNELS_FOUND] = kernels
    assert read_study(folder_of(tmp_path, *runs)).arms == ["layernorm, pre"]


def test_a_tuned_baseline_with_a_label_is_found_by_its_id(tmp_path):
    """The label of its runs has the tuned value, and its norm is that of the other arm too."""
    runs = []
    for layers, rate in ((6, 0.1), (24, 0.2)):
        differs = {"model.decoder_layers": layers, "optimization.lr": [rate]}
        run = made_up(f"layernorm-decoder-layers-{layers}-lr-{rate}", differs=differs)
        runs.append(at_rate(run, rate))
    arm, baseline = (f"layernorm-decoder-layers-{layers}" for layers in (6, 24))
    text = f"primary: [{{arm: {arm}, baseline: {baseline}}}]\nlabels: {{{baseline}: deep}}\n"
    text += "tune: {grid: {optimization.lr: [0.1, 0.2]}, seeds: [101]}\n"
    folders = folder_of(tmp_path, *runs)
    study = read_study(folders, file=declared(tmp_path, text), declared_labels=True)
    assert (study.baseline, study.arms) == ("deep", ["deep", f"{arm}, pre"])


def test_a_declared_arm_is_found_if_tuning_changes_its_rate_alone(tmp_path):
    """The other arms keep the rate of the experiment; the placement of all is not its own."""
    runs = []
    for label, rate in (("layernorm-post", 0.1), ("dyt-post-lr-0.2", 0.2)):
        own = {"optimization.lr": [rate]} if "lr" in label else {}
        run = made_up(label, placement="post", differs={"model.norm_placement": "post", **own})
        runs.append(at_rate(run, rate))
    text = "primary: [{arm: dyt-post, baseline: layernorm-post, outcome: tokenized}]\n"
    text += "tune: {grid: {optimization.lr: [0.1, 0.2]}, seeds: [101]}\nlabels: {dyt-post: DyT}\n"
    folders, file = folder_of(tmp_path, *runs), declared(tmp_path, text)
    study = read_study(folders, file=file, declared_labels=True)
    (primary,) = study.primary
    assert [primary.baseline, primary.arm] == study.arms == ["layernorm, post", "DyT"]
    assert primary.outcome == "score"  # as tables call it


def test_arms_at_values_of_their_own_keep_their_names(tmp_path):
    runs = [(norm, seed, r) for norm, r in (("layernorm", 0.1), ("dyt", 0.2)) for seed in (1, 2)]
    folders = tuned(tmp_path, *runs)
    with pytest.raises(
        CommandError, match="optimization.* declare what the study varies by --vary"
    ):
        read_study(folders)
    assert read_study(folders, vary=["optimization.lr"]).names == ["layernorm, pre", "dyt, pre"]
    text = "tune: {grid: {optimization.lr: [0.1, 0.2]}, seeds: [101]}\n"
    text += "primary: [{arm: dyt, baseline: layernorm}]\n"
    (primary,) = read_study(folders, file=declared(tmp_path, text)).primary
    assert (primary.arm, primary.baseline) == ("dyt, pre", "layernorm, pre")


@pytest.mark.parametrize(
    ("norms", "baseline"), [(["dyt", "none"], "none"), (["dyt", "none", "layernorm"], "layernorm")]
)
def test_without_layernorm_the_baseline_is_the_first_that_the_study_declares(
    tmp_path, norms, baseline
):
    file = declared(tmp_path, "primary: [{arm: dyt, baseline: none}]\n")
    folders = folder_of(tmp_path, *(made_up(norm, seed) for norm in norms for seed in (1, 2)))
    assert read_study(folders, file=file).baseline == f"{baseline}, pre"


def test_arms_may_differ_in_what_the_study_varies(tmp_path):
    """Schedules with parameters of their own, and two learning rates, of one norm."""
    runs = []
    for label, differs, schedule in (
        ("layernorm-fixed-lr-0.1", {"optimization.lr": [0.1]}, {"_name": "fixed", "shrink": 0.5}),
        ("layernorm-lr-0.1", {"optimization.lr": [0.1]}, {"_name": "cosine"}),
        ("layernorm-fixed", {}, {"_name": "fixed", "shrink": 0.5}),
        ("layernorm-wide", {}, {"_name": "cosine"}),
    ):
        if "fixed" in label:
            differs = {**differs, "lr_scheduler._name": "fixed"}
        runs.append(made_up(label, differs=differs, settings__lr_scheduler=schedule))
    folders = folder_of(tmp_path, *runs)
    file = declared(
        tmp_path,
        "vary: [optimization.lr, lr_scheduler]\n"
        "primary: [{arm: layernorm-fixed-lr-0.1, baseline: layernorm-lr-0.1},\n"
        "          {arm: layernorm-fixed, baseline: layernorm-wide}]\n",
    )
    study = read_study(folders, file=file)
    assert study.baseline == "layernorm-lr-0.1, pre"  # four arms are of layernorm
    assert [(each.arm, each.baseline) for each in study.primary] == [
        ("layernorm-fixed-lr-0.1, pre", "layernorm-lr-0.1, pre"),
        ("layernorm-fixed, pre", "layernorm-wide, pre"),
    ]
    with pytest.raises(CommandError, match="differ in settings of lr_scheduler"):
        read_study(folders, "layernorm-wide", vary=["optimization.lr"])


def test_two_differences_are_compared_by_seed(tmp_path):
    """The change of a difference, with the seeds that all four arms have."""
    scores = {"a": {1: 5.0, 2: 7.0, 3: 9.0}, "b": {1: 4.0, 2: 5.0}, "c": {1: 1.0, 2: 1.5, 3: 9.0}}
    scores["layernorm"] = {1: 1.0, 2: 0.0, 3: 0.0}
    runs = [made_up(n, seed=s, bleu=x) for n, by in scores.items() for s, x in by.items()]
    side = "{arm: a minus b, baseline: c minus layernorm}"
    file = declared(tmp_path, f"primary: [{side}]\n")
    study = read_study(folder_of(tmp_path, *runs), file=file)
    (row,) = study.comparisons.declared.to_dict("records")
    assert row["arm"] == "a, pre minus b, pre"
    assert row["by_seed"] == (1.0 - 0.0, 2.0 - 1.5)
    assert (row["n"], row["mean"], row["difference"]) == (2, 1.5, 0.75)
    wrong = declared(tmp_path, f"primary: [{side.replace('minus b', 'minus d')}]\n")
    with pytest.raises(
        CommandError, match="arm d, which is not declared or has no run; choose from a; a, pre; b"
    ):
        read_study(folder_of(tmp_path, *runs), file=wrong)


def test_pairs_stay_within_a_placement(tmp_path):
    def without_norms(placement):
        return made_up("none", placement=placement, sites={"encoder-ffn": "none"})

    runs = [
        made_up(),
        made_up(seed=2),
        made_up("dyt"),
        made_up("layernorm-post", placement="post", differs=POST),
    ]
    runs += [
        made_up("dyt-post", placement="post", differs=POST),
        without_norms("pre"),
        without_norms("post"),
    ]
    study = read_study(folder_of(tmp_path, *runs))
    assert study.equal_arms == {"none, post": "none, pre"}
    assert set(study.pairs) == {
        ("layernorm, pre", "layernorm, pre"),
        ("layernorm, post", "layernorm, pre"),
        *((f"{norm}, {p}", f"layernorm, {p}") for norm in ("dyt", "none") for p in ("pre", "post")),
    }
    without_post = [run for run in runs if run["norm"] != "layernorm-post"]
    folders = folder_of(tmp_path / "other", *without_post)
    counted = [arm for arm, _ in read_study(folders).pairs if arm.startswith("none")]
    assert counted == ["none, pre"] or counted == ["none, post"]  # one model, one comparison


def test_pairs_have_the_same_settings_where_such_a_baseline_ran(tmp_path):
    """Arms of 12 layers are not compared with a baseline of 24."""

    def arm(placement, layers):  # each at a learning rate of its own
        differs = {"model.norm_placement": placement, "model.decoder_layers": layers}
        differs["optimization.lr"] = [layers / 1000 if placement == "pre" else 0.1]
        name = Arm("layernorm", placement, differs).file_name()
        return made_up(name, experiment="toy_pre", placement=placement, differs=differs)

    label = "layernorm-{}-decoder-layers-{}".format
    arms = [arm(placement, layers) for layers in (12, 24) for placement in ("pre", "rezero")]
    folders = folder_of(tmp_path, *arms, arm("post", 12))
    names = [arm(placement, 24)["norm"] for placement in ("rezero", "pre")]
    text = "primary: [{{arm: {}, baseline: {}}}]\n".format(*names)
    text += "vary: [optimization.lr]\n"
    study = read_study(folders, label("pre", 24), file=declared(tmp_path, text))
    pairs = {ours.split(",")[0]: theirs.split(",")[0] for ours, theirs in study.pairs}
    assert pairs == {
        **{label(placement, 12): label("pre", 12) for placement in ("rezero", "post")},
        label("rezero", 24): label("pre", 24),
        label("pre", 12): label("pre", 24),
        label("pre", 24): label("pre", 24),
    }
    # without that declaration, arms of one placement are compared
    pairs = dict(read_study(folders, label("pre", 24), vary=["optimization.lr"]).pairs)
    assert pairs[f"{label('rezero', 12)}, rezero"] == f"{label('rezero', 24)}, rezero"


def test_rows_are_renamed(tmp_path):
    labels = {"mynorm": "Ours", "mynorm-lr-0.01, pre": "Ours, faster"}
    study = read_study(common_flags(tmp_path), labels=labels)
    assert study.names == ["layernorm, pre", "Ours", "Ours, faster"]
    with pytest.raises(CommandError, match="--label none=A: none is the name of 0 rows; choose"):
        read_study(common_flags(tmp_path), labels={"none": "A"})


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("layernorm, pre", "another arm is layernorm, pre already"),
        ("LN minus bias", "' minus ' separates the arms of a difference"),
    ],
)
def test_a_label_that_means_other_arms_is_refused(label, reason, tmp_path):
    with pytest.raises(CommandError, match=f"--label mynorm={label}: {reason}"):
        read_study(common_flags(tmp_path), labels={"mynorm": label})


def test_a_seed_given_twice_is_refused(tmp_path):
    folders = folder_of(tmp_path, made_up(), made_up(experiment="again"))
    with pytest.raises(CommandError, match="two runs of layernorm have seed 1"):
        read_study(folders)


def test_runs_without_a_result_are_read_with_their_placement(tmp_path):
    (folder,) = folder_of(tmp_path, made_up(), made_up("far"))
    write_failure(folder, "far", 2)
    write_failure(folder, "gone", 1, differs=POST)
    write_failure(folder, "named-post", 1, differs=POST)
    write_failure(folder, "new", 1, state="failed")
    study = read_study([folder])
    far = study.failures[study.failures["arm"] == "far, pre"]
    assert list(zip(far["seed"], far["state"])) == [(2, "diverged")]
    assert study.failed_arms == ["gone, post", "named, post", "new, pre"]
    names = ["layernorm, pre", "far, pre", "gone, post", "named, post", "new, pre"]
    assert study.names == names
    assert "new, pre" not in study.arms
