"""Which runs may stand in one comparison, and what their table says."""

from __future__ import annotations

import statistics

import pytest

from made_up_results import folder_of, made_up, study_of_three, write_failure
from norm_plugin.analysis.comparison import (
    BASELINE,
    IF_NORMAL,
    NOT_SHOWN,
    ONE_SEED,
    compare_all,
    findings,
    remarks,
)
from norm_plugin.analysis.sections import facts_of
from norm_plugin.analysis.seeds import compare, holm, pooled_deviation, seeds_needed
from norm_plugin.analysis.study import placement_of, read_study
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.results import SCHEMA
from norm_plugin.experiments.tables import table


def test_the_baseline_stands_first_and_runs_are_grouped(tmp_path):
    study = read_study(study_of_three(tmp_path))
    assert study.baseline.norm == "layernorm"
    assert study.baseline.seeds == (1, 2, 3)
    assert study.baseline.scores == [35.0, 35.3, 34.9]
    assert len(study.settings) == 3


def test_placements_are_settings_of_their_own(tmp_path):
    stock = made_up("stock", settings__model={"encoder_normalize_before": True})
    runs = made_up(), made_up(placement="post"), made_up(placement="post", seed=2), stock
    study = read_study(folder_of(tmp_path, *runs))
    # the placement of the most runs is the baseline's
    assert study.baseline.name == "layernorm, post"
    assert {setting.name for setting in study.settings[1:]} == {"layernorm, pre", "stock, pre"}


def test_a_placement_in_the_label_of_a_run_is_named_once(tmp_path):
    runs = made_up(), made_up("layernorm-post", placement="post")
    study = read_study(folder_of(tmp_path, *runs))
    assert [setting.name for setting in study.settings] == ["layernorm, pre", "layernorm, post"]
    assert study.settings[1].norm == "layernorm-post"


def test_two_settings_of_one_name_are_refused(tmp_path):
    runs = made_up(placement="post"), made_up("layernorm-post", placement="post")
    with pytest.raises(CommandError, match="layernorm and layernorm-post both are layernorm, post"):
        read_study(folder_of(tmp_path, *runs))


@pytest.mark.parametrize("given", [{}, {"norm_placement": "post"}])
def test_a_placement_of_one_stack_is_named(given):
    one = made_up(settings__model={**given, "norm_placement_decoder": "sandwich"})
    assert placement_of(one) == "encoder post, decoder sandwich"


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
        table(runs)


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
    assert facts_of(study)[-1] == "All runs differ from the recipe in max-epoch=2."


@pytest.mark.parametrize("baseline", ["layernorm", "layernorm, pre", "layernorm-max-epoch-2"])
def test_the_baseline_is_a_norm_or_a_row(baseline, tmp_path):
    assert read_study(common_flags(tmp_path), baseline).baseline.seeds == (1, 2)


def test_a_norm_whose_settings_all_have_differences_is_no_clear_baseline(tmp_path):
    runs = [
        made_up(f"mynorm-lr-{rate}", differs={"optimization.lr": [rate]}) for rate in (0.1, 0.2)
    ]
    folders = folder_of(tmp_path, *runs, made_up())
    with pytest.raises(CommandError, match="several .* mynorm-lr-0.1, pre; mynorm-lr-0.2, pre"):
        read_study(folders, "mynorm")
    assert read_study(folders, "mynorm-lr-0.2").baseline.norm == "mynorm-lr-0.2"
    assert read_study(folders[:1], "layernorm").baseline.norm == "layernorm"


def test_rows_are_renamed(tmp_path):
    labels = {"mynorm": "Ours", "mynorm-lr-0.01, pre": "Ours, faster"}
    study = read_study(common_flags(tmp_path), labels=labels)
    assert study.names == ["layernorm, pre", "Ours", "Ours, faster"]
    with pytest.raises(CommandError, match="--label none=A: none is the name of 0 rows; choose"):
        read_study(common_flags(tmp_path), labels={"none": "A"})


def test_a_seed_given_twice_is_refused(tmp_path):
    folders = folder_of(tmp_path, made_up(), made_up(experiment="again"))
    with pytest.raises(CommandError, match="two runs of layernorm have seed 1"):
        read_study(folders)


def test_a_baseline_that_was_not_run_is_refused(tmp_path):
    with pytest.raises(CommandError, match="baseline none; name .* --baseline: layernorm"):
        read_study(folder_of(tmp_path, made_up()), baseline="none")


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(CommandError, match="no results in"):
        read_study([tmp_path])


def test_a_result_cut_by_a_kill_is_refused(tmp_path):
    (folder,) = folder_of(tmp_path, made_up())
    path = next(folder.glob("*.json"))
    path.write_text(path.read_text()[:100])
    with pytest.raises(CommandError, match="is not JSON"):
        read_study([folder])


def test_a_result_of_another_version_is_refused(tmp_path):
    folders = folder_of(tmp_path, made_up(schema=1))
    with pytest.raises(
        CommandError, match=rf"layernorm-seed1\.json is not a result of schema {SCHEMA}"
    ):
        read_study(folders)


def test_a_result_that_lacks_a_part_is_refused(tmp_path):
    result = made_up()
    del result["training"], result["versions"]
    with pytest.raises(
        CommandError, match=r"layernorm-seed1\.json lacks training, versions; write it again"
    ):
        read_study(folder_of(tmp_path, result))


def test_runs_without_a_result_are_read_with_their_placement(tmp_path):
    (folder,) = folder_of(tmp_path, made_up(), made_up("far"))
    write_failure(folder, "far", 1)  # which has a result
    write_failure(folder, "far", 2)
    write_failure(folder, "gone", 1, differs={"model.norm_placement": "post"})
    write_failure(folder, "by-flag-post", 1, differs={"norm-placement": "post"})
    write_failure(folder, "new", 1, state="failed")
    study = read_study([folder])
    assert [failure.state for failure in study.failures_of("far, pre")] == ["diverged"]
    # a record names only what differs from the recipe, which the other runs of it tell
    assert study.failed_settings == ["by-flag, post", "gone, post", "new, pre"]
    names = ["layernorm, pre", "far, pre", "by-flag, post", "gone, post", "new, pre"]
    assert study.names == names
    assert study.named("far, pre").seeds == (1,) and study.named("new, pre") is None


def test_of_two_placements_of_a_failed_run_the_flag_counts(tmp_path):
    (folder,) = folder_of(tmp_path, made_up())
    both = {"model.norm_placement": "pre", "norm-placement": "post"}
    write_failure(folder, "far", 1, differs=both)
    assert read_study([folder]).failed_settings == ["far, post"]


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"norm": "far"', "is not JSON"), ('{"norm": "far"}', "no record of a failed run: it lacks")],
)
def test_a_damaged_record_of_a_failure_is_refused(tmp_path, text, message):
    (folder,) = folder_of(tmp_path, made_up())
    write_failure(folder, "far", 1)
    (folder / "failed" / "far-seed1.json").write_text(text)
    with pytest.raises(CommandError, match=message):
        read_study([folder])


def test_the_table_corrects_for_all_of_its_tests(tmp_path):
    study = read_study(study_of_three(tmp_path))
    rows = {row.setting.norm: row for row in compare_all(study)}
    others = [rows["alike"], rows["far"]]
    raw = [compare(row.setting.scores, study.baseline.scores) for row in others]
    assert [row.corrected for row in others] == pytest.approx(holm([one.p for one in raw]))
    welch = holm([one.t_p for one in raw])
    assert [row.t_corrected for row in others] == pytest.approx(welch)
    assert rows["layernorm"].verdict == BASELINE
    assert rows["alike"].verdict == NOT_SHOWN and welch[0] > 0.05
    # three seeds a side cannot give p < 0.1 by permutation, whatever the scores
    assert rows["far"].verdict == IF_NORMAL[True] and welch[1] < 0.05
    assert rows["far"].difference.interval[0] > 2


def test_five_seeds_can_show_a_difference(tmp_path):
    runs = [made_up(seed=seed, bleu=35 + seed / 10) for seed in range(1, 6)]
    runs += [made_up("low", seed=seed, bleu=33 + seed / 10) for seed in range(1, 6)]
    (_, low) = compare_all(read_study(folder_of(tmp_path, *runs)))
    assert low.corrected == pytest.approx(2 / 252)  # of 10 runs taken five at a time, two-sided
    assert low.verdict == "lower than the baseline"
    assert findings([low]) == "Lower than the baseline: low, pre."
    assert "It excludes 0 for low, pre." in " ".join(remarks([low]))


def split_by_seed(norm, *scores):
    """Runs of a corpus that each seed splits at random."""
    for seed, score in enumerate(scores, 1):
        data = {"corpus": "toy", "checksum": f"of {seed}", "training_pairs": 1000}
        yield made_up(norm, seed, score, data={**data, "settings": {"split_seed": seed}})


def test_seeds_that_share_a_split_are_compared_one_by_one(tmp_path):
    splits = (60.0, 90.0, 70.0, 80.0)  # far apart, which no unpaired test would forgive
    gains = (1.0, 1.1, 0.9, 1.2)
    runs = [*split_by_seed("layernorm", *splits, 50.0)]  # a fifth seed, which the other lacks
    runs += split_by_seed("good", *(sum(pair) for pair in zip(splits, gains)))
    rows = compare_all(read_study(folder_of(tmp_path, *runs)))
    good = rows[1].difference
    assert good.mean == pytest.approx(1.05) and good.by_seed == pytest.approx(gains)
    assert rows[1].verdict == IF_NORMAL[True] and good.p == pytest.approx(2 / 2**4)
    text = " ".join(remarks(rows))
    assert "it takes 6 seeds a setting" in text  # 2 / 2^6 < 0.05 < 2 / 2^5
    deviation = statistics.stdev(gains)
    assert f"deviation of the differences by seed is {deviation:.2f} BLEU over all" in text
    assert (
        f"takes {seeds_needed(deviation, 0.2, paired=True)} seeds a setting (two-sided pa" in text
    )


def test_facts_are_of_all_runs(tmp_path):
    runs = [*split_by_seed("layernorm", 60.0, 61.0)]
    runs[1]["data"]["training_pairs"] = 998
    (data, _) = facts_of(read_study(folder_of(tmp_path, *runs)))
    assert "toy, 998 to 1,000 training examples, 2 random splits with" in data
    assert "checksums of 1, of 2;" in data


def test_five_seeds_show_nothing_among_seven_comparisons(tmp_path):
    norms = ["layernorm", *(f"low{number}" for number in range(7))]
    runs = [
        made_up(norm, seed, bleu=(35 if norm == "layernorm" else 33) + seed / 10)
        for norm in norms
        for seed in range(1, 6)
    ]
    rows = compare_all(read_study(folder_of(tmp_path, *runs)))[1:]
    for row in rows:
        assert row.difference.p < 0.05 < row.corrected  # 2 / 252, and 7 times as much
        assert row.verdict == IF_NORMAL[False]


def test_one_seed_is_never_tested(tmp_path):
    rows = compare_all(read_study(folder_of(tmp_path, made_up(), made_up("far", bleu=90.0))))
    assert rows[1].verdict == ONE_SEED and rows[1].corrected is None
    assert findings(rows) == (
        "No setting is shown to differ from the baseline. Not tested with one seed: far, pre."
    )
    assert any("nothing is tested" in text for text in remarks(rows))
    assert not any("0" in text for text in remarks(rows))  # no p, no interval, no seeds needed


def test_a_study_that_is_not_finished_says_so(tmp_path):
    runs = [made_up(), made_up(seed=2, bleu=35.2), made_up("one"), made_up("two")]
    runs.append(made_up("two", seed=2, bleu=35.4))
    rows = {row.setting.norm: row for row in compare_all(read_study(folder_of(tmp_path, *runs)))}
    assert rows["one"].verdict == ONE_SEED and rows["one"].difference.p is None
    # of 4 runs taken two at a time, two-sided: no smaller p is possible
    assert rows["two"].difference.least_p == pytest.approx(1 / 3)
    assert rows["two"].verdict == NOT_SHOWN
    text = " ".join(remarks(list(rows.values())))
    assert "No interval excludes 0." in text
    assert "The settings have 1 to 2 seeds" in text
    assert "after the correction for 1 comparison." in text
    assert "(2 degrees of freedom)" in text


def test_the_remarks_say_what_the_seeds_can_show(tmp_path):
    study = read_study(study_of_three(tmp_path))
    text = " ".join(remarks(compare_all(study)))
    variances = [statistics.variance(setting.scores) for setting in study.settings]
    assert f"between seeds is {statistics.mean(variances) ** 0.5:.2f} BLEU" in text
    assert "is 0.1, and 0.2 after the correction for 2 comparisons" in text
    assert "With 2 comparisons it takes 5 seeds a setting to show any difference" in text
    assert "shows no difference by itself. It excludes 0 for far, pre." in text
    deviation = pooled_deviation([setting.scores for setting in study.settings])
    one, both = (seeds_needed(deviation, 0.2, comparisons) for comparisons in (1, 2))
    assert f"0.2 BLEU in one comparison takes {one} seeds" in text
    assert f"and {both} where the level is divided by 2 comparisons" in text


def test_a_table_that_could_show_nothing_says_so_first(tmp_path):
    rows = compare_all(read_study(study_of_three(tmp_path)))
    assert findings(rows) == (
        "With so few seeds the permutation test can show no difference, however large it is. "
        "Higher, if scores are normally distributed: far, pre. No difference shown: alike, pre."
    )


def test_equal_scores_do_not_count_as_certain(tmp_path):
    runs = [made_up(norm, seed) for norm in ("layernorm", "same") for seed in (1, 2)]
    rows = compare_all(read_study(folder_of(tmp_path, *runs)))
    text = " ".join(remarks(rows))
    assert "No interval excludes 0." in text
    assert "The seeds of layernorm, pre; same, pre have equal scores" in text
