"""The final training loss: the same updates or the same epoch for all runs of a study."""

from __future__ import annotations

import pytest

from made_up_results import folder_of, made_up
from norm_lab.report.page import main
from norm_lab.results.table import read_results
from norm_lab.study.study import read_study


def points(losses, every=1, epoch=None):
    """A curve with these losses, a line every so many updates, or epochs of that length."""
    return [
        {"epoch": epoch or i, "updates": every * i, "loss": loss}
        for i, loss in enumerate(losses, 1)
    ]


def study_of(tmp_path, **curves):
    """A study with a seed for each norm, of its curves."""
    runs = [made_up(norm, curves={"valid": [], **of_norm}) for norm, of_norm in curves.items()]
    return read_study(folder_of(tmp_path, *runs))


def losses_of(study):
    return dict(zip(study.runs["norm"], study.runs["train_loss"]))


def test_in_one_epoch_it_is_over_the_last_updates_and_not_over_all(tmp_path):
    epoch = points([5.0], every=200)
    study = study_of(
        tmp_path,
        layernorm={"train": epoch, "train_inner": points([9, 5, 2, 4], every=50, epoch=1)},
        rmsnorm={"train": epoch, "train_inner": points([8, 5, 1, 2], every=50, epoch=1)},
    )
    assert losses_of(study) == {"layernorm": 3.0, "rmsnorm": 1.5}
    assert study.trained == "updates 101 to 200"


def test_runs_that_stop_at_different_updates_are_compared_at_the_last_shared_one(tmp_path):
    study = study_of(
        tmp_path,
        layernorm={"train_inner": points([9, 5, 4, 1], every=50, epoch=1)},
        rmsnorm={"train_inner": points([8, 5, 3], every=50, epoch=1)},
    )
    assert losses_of(study) == {"layernorm": 4.5, "rmsnorm": 4.0}
    assert study.trained == "updates 51 to 150"


def test_a_line_of_the_log_weighs_as_many_updates_as_it_is_over(tmp_path):
    often, rarely = points([9, 9, 1, 2], every=60), points([9, 6], every=120)
    study = study_of(tmp_path, layernorm={"train_inner": often}, rmsnorm={"train_inner": rarely})
    assert losses_of(study) == {"layernorm": 1.5, "rmsnorm": 6.0}
    assert study.trained == "updates 121 to 240"
    odd = [
        {"epoch": 1, "updates": n, "loss": loss} for n, loss in ((100, 9.0), (160, 1.0), (200, 6.0))
    ]
    assert losses_of(study_of(tmp_path / "odd", layernorm={"train_inner": odd})) == {
        "layernorm": pytest.approx((60 * 1 + 40 * 6) / 100)
    }


def test_without_losses_in_epochs_it_is_the_last_shared_epoch(tmp_path):
    """Early stopping ends so; the stored mean over the last epoch of each run stays readable."""
    long, short = points([9, 5, 3, 1], every=50), points([8, 6, 4], every=51)
    study = study_of(tmp_path, layernorm={"train": long}, rmsnorm={"train": short})
    assert losses_of(study) == {"layernorm": 3.0, "rmsnorm": 4.0}
    assert study.trained == "epoch 3"
    stored = read_results(*study.runs["folder"].unique())
    assert dict(zip(stored["norm"], stored["train_loss"])) == {"layernorm": 1.0, "rmsnorm": 4.0}


def test_the_mean_over_the_only_epoch_is_none(tmp_path):
    study = study_of(
        tmp_path,
        layernorm={"train": points([5], every=200), "train_inner": points([9], every=99)},
        rmsnorm={"train": points([6], every=200)},
    )
    assert study.runs["train_loss"].isna().all() and study.trained == ""


def test_a_run_without_curves_has_none_and_leaves_the_others_theirs(tmp_path):
    runs = [made_up(curves={"train": points([9, 5]), "valid": []}), made_up("rmsnorm", curves=None)]
    study = read_study(folder_of(tmp_path, *runs))
    assert study.trained == "epoch 2"
    assert list(study.runs["train_loss"].isna()) == [False, True]


def test_the_page_names_the_updates(tmp_path, undrawn):
    curves = {"valid": [], "train_inner": points([9, 5, 4, 1], every=50, epoch=1)}
    folders = folder_of(tmp_path, *(made_up(seed=seed, curves=curves) for seed in (1, 2)))
    main([*map(str, folders), "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "report.md").read_text()
    assert "final training loss, bits per token, mean over updates 101 to 200 of every run." in page
