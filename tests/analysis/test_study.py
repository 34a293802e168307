"""Which runs may stand in one comparison, and what their table says."""

from __future__ import annotations

import statistics

import pytest

from made_up_results import folder_of, made_up, study_of_three
from norm_plugin.analysis.comparison import BASELINE, NOT_SHOWN, ONE_SEED, compare_all, remarks
from norm_plugin.analysis.seeds import compare, holm
from norm_plugin.analysis.study import placement_of, read_study
from norm_plugin.commands.command_line import CommandError


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


def test_a_seed_given_twice_is_refused(tmp_path):
    folders = folder_of(tmp_path, made_up(), made_up(experiment="again"))
    with pytest.raises(CommandError, match="two runs of layernorm have seed 1"):
        read_study(folders)


def test_a_baseline_that_was_not_run_is_refused(tmp_path):
    with pytest.raises(CommandError, match="'none'; there are runs of layernorm"):
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


def test_the_table_corrects_for_all_of_its_tests(tmp_path):
    study = read_study(study_of_three(tmp_path))
    rows = {row.setting.norm: row for row in compare_all(study)}
    raw = [compare(rows[norm].setting.scores, study.baseline.scores).p for norm in ("alike", "far")]
    assert [rows["alike"].corrected, rows["far"].corrected] == pytest.approx(holm(raw))
    assert rows["layernorm"].verdict == BASELINE
    # three seeds a side cannot give p < 0.1, whatever the scores
    assert rows["alike"].verdict == rows["far"].verdict == NOT_SHOWN
    assert rows["far"].difference.interval[0] > 2


def test_five_seeds_can_show_a_difference(tmp_path):
    runs = [made_up(seed=seed, bleu=35 + seed / 10) for seed in range(1, 6)]
    runs += [made_up("low", seed=seed, bleu=33 + seed / 10) for seed in range(1, 6)]
    (_, low) = compare_all(read_study(folder_of(tmp_path, *runs)))
    assert low.corrected == pytest.approx(2 / 252)  # of 10 runs taken five at a time, two-sided
    assert low.verdict == "lower than the baseline"


def test_one_seed_is_never_tested(tmp_path):
    rows = compare_all(read_study(folder_of(tmp_path, made_up(), made_up("far", bleu=90.0))))
    assert rows[1].verdict == ONE_SEED and rows[1].corrected is None
    assert any("nothing is tested" in text for text in remarks(rows))


def test_the_remarks_say_what_the_seeds_can_show(tmp_path):
    study = read_study(study_of_three(tmp_path))
    text = " ".join(remarks(compare_all(study)))
    variances = [statistics.variance(setting.scores) for setting in study.settings]
    assert f"between seeds is {statistics.mean(variances) ** 0.5:.2f} BLEU" in text
    assert "is 0.1, and 0.2 after the correction for 2 comparisons" in text
    assert "too few for this test to show any difference" in text
